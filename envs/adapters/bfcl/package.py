"""What is taken from the package bfcl-eval: tasks, ground truth, tool documents, and the classes that simulate the tools."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cacherl.errors import ConfigError
from envs.base import PlannedCall, ToolSpec
from envs.jsontext import compact

#: Categories by level, easiest first.
CATEGORIES = {1: "base", 2: "miss_param", 3: "miss_func", 4: "long_context"}

_SOURCE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
#: Class -> its module and its tool documents.
_MODULES = {
    "GorillaFileSystem": ("gorilla_file_system", "gorilla_file_system"),
    "MathAPI": ("math_api", "math_api"),
    "MessageAPI": ("message_api", "message_api"),
    "TwitterAPI": ("posting_api", "posting_api"),
    "TicketAPI": ("ticket_api", "ticket_api"),
    "TradingBot": ("trading_bot", "trading_bot"),
    "TravelAPI": ("travel_booking", "travel_booking"),
    "VehicleControlAPI": ("vehicle_control", "vehicle_control"),
}
#: Their documents' names of JSON Schema's types.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One task of the suite.

    Attributes:
        questions: what the user says in each turn; '' where the agent is only given more functions.
        truth: the calls of each turn; none where something is missing that the user has not given yet.
        withheld: turn -> names of functions that are offered from it on.
        classes, config: the simulated APIs and the states that they begin in.
    """

    number: int
    category: str
    questions: tuple[str, ...]
    truth: tuple[tuple[PlannedCall, ...], ...]
    withheld: Mapping[int, tuple[str, ...]]
    excluded: frozenset[str]
    classes: tuple[str, ...]
    config: Mapping[str, Any]

    @property
    def long_context(self) -> bool:
        """The simulated APIs are filled with much that does not matter."""
        return self.category == "long_context"


@cache
def entries(category: str) -> tuple[Entry, ...]:
    """The 200 tasks of a category, in the suite's order.

    Raises:
        ConfigError: the package is absent, or another version.
    """
    name = f"BFCL_v4_multi_turn_{category}.json"
    truths = {row["id"]: row["ground_truth"] for row in _rows(f"possible_answer/{name}")}
    return tuple(_entry(number, category, row, truths[row["id"]]) for number, row in enumerate(_rows(name)))


@cache
def tool_specs(class_name: str) -> Mapping[str, ToolSpec]:
    """The tools of one API, by name."""
    rows = _rows(f"multi_turn_func_doc/{_MODULES[class_name][1]}.json")
    return {row["name"]: _spec(row) for row in rows}


def api_class(class_name: str) -> type[Any]:
    """The class that simulates an API.

    Raises:
        ConfigError: something that it imports is absent.
    """
    try:
        return getattr(importlib.import_module(f"{_SOURCE}.{_MODULES[class_name][0]}"), class_name)  # type: ignore[no-any-return]
    except ImportError as error:
        raise ConfigError(f"family 'bfcl' needs the packages bfcl-eval and mpmath ({error}); {_INSTALL}") from error


def read_call(text: str) -> PlannedCall:
    """A call of the ground truth, which is written as Python: a name with literal arguments, and nothing else.

    Raises:
        ValueError: it is anything else. Nothing is ever evaluated.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a call: {text!r}") from error
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"not a call of a plain name: {text!r}")
    names = _parameter_names(node.func.id)[: len(node.args)] if node.args else ()
    if len(names) != len(node.args) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f"arguments without a name: {text!r}")
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args, strict=True)}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return PlannedCall(name=node.func.id, arguments=json.loads(compact(arguments)))


_INSTALL = "install it with: pip install --no-deps bfcl-eval==2026.3.23 mpmath"


def _folder() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise ConfigError(f"family 'bfcl' needs the package bfcl-eval; {_INSTALL}")
    return Path(spec.origin).parent / "data"


def _rows(name: str) -> list[dict[str, Any]]:
    path = _folder() / name
    if not path.is_file():
        raise ConfigError(f"family 'bfcl': bfcl-eval has no {name}; this adapter is for its version 2026.3.23; {_INSTALL}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _entry(number: int, category: str, row: Mapping[str, Any], truth: Sequence[Sequence[str]]) -> Entry:
    return Entry(
        number=number,
        category=category,
        questions=tuple("\n".join(message["content"] for message in turn) for turn in row["question"]),
        truth=tuple(tuple(map(read_call, turn)) for turn in truth),
        withheld={int(turn): tuple(names) for turn, names in row.get("missed_function", {}).items()},
        excluded=frozenset(row.get("excluded_function", ())),
        classes=tuple(row["involved_classes"]),
        config=row["initial_config"],
    )


@cache
def _parameter_names(function: str) -> tuple[str, ...]:
    for class_name in _MODULES:
        if found := tool_specs(class_name).get(function):
            return tuple(found.parameters["properties"])
    return ()


def _spec(row: Mapping[str, Any]) -> ToolSpec:
    parameters = _schema(row["parameters"]) | {"additionalProperties": False}
    return ToolSpec(name=row["name"], description=row["description"], parameters=parameters, read_only=False)


def _schema(value: Any) -> Any:
    """Their dialect as JSON Schema."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _schema(item) for key, item in value.items() if key not in ("type", "optional")}
    if isinstance(value.get("type"), str):
        kind = _TYPES.get(value["type"], value["type"])
        if kind is not None:
            schema["type"] = kind
    elif "type" in value:
        schema["type"] = _schema(value["type"])
    return schema
