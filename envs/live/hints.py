"""From a function's signature and docstring to a `ToolSpec`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from envs.base import ToolSpec

_ARGUMENT = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")
_SECTION = re.compile(r"^[A-Z]\w+:$")


def parameters_of(function: Callable[..., Any], name: str) -> dict[str, TypeAdapter[Any]]:
    """How each parameter is read from JSON; `self` is none.

    Raises:
        ValueError: a parameter has no type hint, or one that JSON cannot carry, or cannot be given by name.
    """
    hints = _hints(function, name)
    readers = {}
    for parameter in _signature(function):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"tool {name!r}: parameter {parameter.name!r} cannot be given by name; arguments come as JSON")
        if parameter.name not in hints:
            raise ValueError(f"tool {name!r}: parameter {parameter.name!r} has no type hint; write {parameter.name}: str")
        hint = hints[parameter.name]
        try:
            readers[parameter.name] = TypeAdapter(hint)
            readers[parameter.name].json_schema()
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
            raise ValueError(
                f"tool {name!r}: parameter {parameter.name!r} has type {hint!r}, which JSON cannot carry; use str, int, float, "
                "bool, Literal, list, dict, or a dataclass of them"
            ) from error
    return readers


def spec_of(
    function: Callable[..., Any], readers: Mapping[str, TypeAdapter[Any]], *, name: str, read_only: bool, cost: float
) -> ToolSpec:
    """The tool that a function is: its schema from the hints, its description from the docstring.

    Raises:
        ValueError: there is no docstring.
    """
    doc = inspect.getdoc(function)
    if not doc:
        raise ValueError(f"tool {name!r}: it has no docstring; write one: it is what the agent is told of the tool")
    described = _described_arguments(doc)
    properties, required = {}, []
    for parameter in _signature(function):
        schema = _without_titles(readers[parameter.name].json_schema())
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, str | int | float):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        parameters["required"] = required
    definitions: dict[str, Any] = {}
    for schema in properties.values():
        definitions |= schema.pop("$defs", {})
    if definitions:
        parameters["$defs"] = definitions
    summary = " ".join(doc.split("\n\n")[0].split())
    return ToolSpec(name=name, description=summary, parameters=parameters, read_only=read_only, cost=cost)


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    return parameters[1:] if parameters and parameters[0].name == "self" else parameters


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(f"tool {name!r}: a type hint names what its module does not define: {error}") from error


def _described_arguments(doc: str) -> dict[str, str]:
    """The lines under 'Args:', as in Google's style, continuation lines joined."""
    lines = iter(doc.splitlines())
    if not any(line.strip() == "Args:" for line in lines):
        return {}
    described: dict[str, str] = {}
    for line in map(str.strip, lines):
        if _SECTION.match(line):
            break
        if found := _ARGUMENT.match(line):
            described[found[1]] = found[2]
        elif line and described:
            described[next(reversed(described))] += f" {line}"
    return described


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_titles(value) for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
    return [_without_titles(value) for value in schema] if isinstance(schema, list) else schema
