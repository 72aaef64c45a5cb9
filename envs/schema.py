"""`Toolbox`: the tools of an environment by name, with JSON-Schema validation and messages that say what to change.

Messages name what is allowed and never quote the model's own text: they stay within a closed vocabulary, and nothing
that the model wrote comes back to it as if the environment had said it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from envs.base import ToolSpec


class Toolbox:
    """Checks calls against the tools' schemas.

    Raises:
        ValueError: two tools have one name.
    """

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.specs = tuple(specs)
        self.read_only = frozenset(spec.name for spec in specs if spec.read_only)
        self._validators = {spec.name: Draft202012Validator(dict(spec.parameters)) for spec in specs}
        if len(self._validators) != len(self.specs):
            raise ValueError(f"tool names must be unique, got {[spec.name for spec in specs]}")

    def __contains__(self, name: str) -> bool:
        return name in self._validators

    @property
    def unknown(self) -> str:
        """What to tell an agent that called a tool which does not exist."""
        return f"unknown tool, use {' or '.join(self._validators)}"

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        """Why a call cannot be made: 'unknown_tool' or 'arguments', and what to tell the agent; None: it can."""
        if name not in self:
            return "unknown_tool", self.unknown
        problem = self.problem(name, arguments)
        return None if problem is None else ("arguments", problem)

    def problem(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the arguments of tool `name`; None: they are valid."""
        validator = self._validators[name]
        if validator.is_valid(arguments):
            return None
        error = best_match(validator.iter_errors(arguments))
        assert error is not None
        return _explain(name, error)

    def messages(self) -> Iterator[str]:
        """Every text that `unknown` and `problem` can give for flat schemas."""
        yield self.unknown
        for spec in self.specs:
            for part in (spec.parameters, *spec.parameters.get("properties", {}).values()):
                yield from _possible(spec.name, part, spec.parameters)


def _explain(tool: str, error: ValidationError) -> str:
    """What is wrong where: of an object within the arguments, its own schema says what it needs."""
    where = " ".join(str(part) for part in error.absolute_path) or tool
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    return _phrase(where, str(error.validator), error.validator_value, schema)


def _possible(tool: str, part: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    names = schema.get("properties", {})
    where = next((name for name, value in names.items() if value is part), tool)
    return (_phrase(where, keyword, value, schema) for keyword, value in part.items() if keyword not in _SILENT)


_SILENT = ("properties", "description", "title", "default")


def _phrase(where: str, keyword: str, value: Any, schema: Mapping[str, Any]) -> str:
    match keyword:
        case "required":
            text = f"needs {_list(schema.get('required', ()), 'and')}"
        case "dependentRequired":
            return "; ".join(f"{where} takes {_list(others, 'and')} together with {name}" for name, others in value.items())
        case "additionalProperties":
            text = f"takes only {_list(schema.get('properties', ()), 'and')}"
        case "type":
            text = f"must be {_list([value] if isinstance(value, str) else value, 'or')}"
        case "enum":
            text = f"must be {_list(value, 'or')}"
        case "anyOf" if kinds := _kinds(value):
            text = f"must be {_list(kinds, 'or')}"
        case _:
            text = f"must satisfy {keyword} {value}"
    return f"{where} {text}"


def _kinds(alternatives: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Types and values that alternatives consist of, such as those of an optional argument; empty: they say more than that."""
    found: list[Any] = []
    for part in alternatives:
        if "enum" in part:
            found += part["enum"]
        elif isinstance(part.get("type"), str) and part["type"] not in ("object", "array"):
            found.append(part["type"])
        else:
            return []
    return found


def _list(items: Iterable[Any], last: str) -> str:
    *head, tail = [str(item) for item in items] or ["nothing"]
    return f"{', '.join(head)} {last} {tail}" if head else tail
