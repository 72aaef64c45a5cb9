"""A configuration as YAML in which every key says what it means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Any

import yaml
from pydantic import BaseModel

from cacherl.config import RunConfig
from cacherl.replay_settings import ReplaySettings

#: An entry of a docstring's "Attributes:", its further lines indented deeper.
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def annotated(config: RunConfig) -> str:
    """YAML that `load_config` reads back as `config`, with the meaning of a key as a comment behind it."""
    return "".join(_lines(RunConfig, config.model_dump(mode="json")))


def _lines(model: type[BaseModel], values: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield _line(f"{name}:", _first_paragraph(kind), depth)
            yield from _lines(kind, values[name], depth + 1)
        elif kind is ReplaySettings:
            yield _line(f"{name}:", _first_paragraph(kind), depth)
            meanings = dict(_ATTRIBUTE.findall(inspect.getdoc(kind) or ""))
            yield from (_line(_yaml(key, value), meanings[key], depth + 1) for key, value in values[name].items())
        else:
            yield _line(_yaml(name, values[name]), field.description or "", depth)


def _yaml(name: str, value: Any) -> str:
    """A scalar or a flat list takes one line."""
    flow = None if isinstance(value, list | dict) else False
    return yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=10**9).rstrip("\n")


def _line(text: str, meaning: str, depth: int) -> str:
    """The comment goes behind what takes one line, and before what takes several."""
    comment = f"# {' '.join(meaning.split())}" if meaning else ""
    joined = f"{comment}\n{text}" if "\n" in text and comment else f"{text}  {comment}".rstrip()
    return indent(joined, "  " * depth) + "\n"


def _first_paragraph(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0]
