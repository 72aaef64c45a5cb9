"""Tool calls as a person types them: `book id=f3`, `search "ada velor"`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envs.base import PlannedCall, ToolSpec


def read_shorthand(line: str, tools: Sequence[ToolSpec]) -> PlannedCall:
    """The call that `line` means: a tool's name, then arguments as `key=value`, or as bare values in the order of the schema.

    A value becomes what the schema says as far as it can; else it stays text, for the environment to refuse.

    Raises:
        ValueError: no tool has that name, quotes are not closed, there are more bare values than arguments.
    """
    name, *words = shlex.split(line) or [""]
    spec = next((spec for spec in tools if spec.name == name), None)
    if spec is None:
        raise ValueError(f"there is no tool {name!r}; the tools are {', '.join(spec.name for spec in tools)}")
    properties: Mapping[str, Any] = spec.parameters.get("properties", {})
    given: dict[str, str] = {}
    unnamed = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key.isidentifier():
            given[key] = value
        else:
            unnamed.append(word)
    free = [key for key in properties if key not in given]
    if len(unnamed) > len(free):
        raise ValueError(
            f"{name} takes {', '.join(properties) or 'no arguments'}; there is none left for {unnamed[len(free)]!r}"
        )
    given |= dict(zip(free, unnamed, strict=False))
    return PlannedCall(name=name, arguments={key: _typed(value, properties.get(key, {})) for key, value in given.items()})


def describe_arguments(spec: ToolSpec) -> str:
    """The arguments of a tool in one line: 'id: string, field: boss | friend, limit?: integer'."""
    return ", ".join(_describe(spec.parameters)) or "none"


def _describe(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, part in schema.get("properties", {}).items():
        kind = " | ".join(map(str, part["enum"])) if "enum" in part else _kinds(part)
        yield f"{name}{'' if name in required else '?'}: {kind}"


def _kinds(part: Mapping[str, Any]) -> str:
    kinds = part.get("type", "any")
    return kinds if isinstance(kinds, str) else " | ".join(kinds)


def _typed(value: str, part: Mapping[str, Any]) -> Any:
    if "string" in _kinds(part):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
