"""The table of action formats, by the name that `env.action_format` gives."""

from __future__ import annotations

from envs import jsontext, limits
from envs.base import ActionFormat
from envs.format_cacherl import CacheRLFormat
from envs.format_hermes import HermesFormat
from envs.format_llama3 import Llama3Format
from envs.format_mistral import MistralFormat

FORMATS: dict[str, ActionFormat] = {
    "cacherl": CacheRLFormat(),
    "hermes": HermesFormat(),
    "llama3": Llama3Format(),
    "mistral": MistralFormat(),
}

#: Everything that a format can say about an unreadable call.
PROBLEMS = (*jsontext.PROBLEMS, *limits.PROBLEMS)


def action_format(name: str) -> ActionFormat:
    """The format called `name`.

    Raises:
        ValueError: there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"env.action_format must be one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]
