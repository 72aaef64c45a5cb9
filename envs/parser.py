"""The table of action formats, by the name that `env.action_format` gives."""

from __future__ import annotations

from envs import jsontext, limits
from envs.base import ActionFormat
from envs.format_cacherl import CacheRLFormat

FORMATS: dict[str, ActionFormat] = {"cacherl": CacheRLFormat()}

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
