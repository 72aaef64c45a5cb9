"""Tables, columns, query and calc of one question, and the verdict: the exact number, with every needed aggregate queried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envs.base import PlannedCall, ToolSpec
from envs.calllog import CallLog
from envs.data.names import LARGEST
from envs.data.question import Question
from envs.data.table import AGGREGATES, OPERATIONS, Filter, Part
from envs.simulator import ToolResult

NO_TABLE = "no such table"
NO_COLUMN = "no such column"
NO_ROWS = "no rows"
OUT_OF_RANGE = "result is out of range"
ERRORS = (NO_TABLE, NO_COLUMN, NO_ROWS, OUT_OF_RANGE)

_OPERAND = {"type": "integer", "minimum": 0, "maximum": LARGEST}
TOOLS = (
    ToolSpec(
        name="tables",
        description="List the tables.",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
    ),
    ToolSpec(
        name="columns",
        description="List the columns of a table.",
        parameters={
            "type": "object",
            "properties": {"table": {"type": "string"}},
            "required": ["table"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(
        name="query",
        description="Aggregate a number column of a table, over all rows or over those where a column equals a value.",
        parameters={
            "type": "object",
            "properties": {
                "table": {"type": "string"},
                "agg": {"type": "string", "enum": list(AGGREGATES)},
                "column": {"type": "string"},
                "where": {"type": "string"},
                "equals": {"type": "string"},
            },
            "required": ["table", "agg", "column"],
            "dependentRequired": {"where": ["equals"], "equals": ["where"]},
            "additionalProperties": False,
        },
    ),
    ToolSpec(
        name="calc",
        description="Add or subtract two numbers.",
        parameters={
            "type": "object",
            "properties": {"a": _OPERAND, "op": {"type": "string", "enum": list(OPERATIONS)}, "b": _OPERAND},
            "required": ["a", "op", "b"],
            "additionalProperties": False,
        },
    ),
)


class DataSimulator:
    """Serves the tables of one question. The only state is the set of calls that were made."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._log = CallLog(needed=needed_calls(question), evidence=map(query_call, question.parts))

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        match name:
            case "tables":
                outcome: dict[str, Any] | str = {"tables": list(self._question.tables)}
            case "columns":
                outcome = self._columns(arguments["table"])
            case "query":
                outcome = self._query(arguments)
            case _:
                outcome = _calc(**arguments)
        tags = self._log.record(name, arguments)
        return ToolResult(error=outcome, tags=tags) if isinstance(outcome, str) else ToolResult(content=outcome, tags=tags)

    def _columns(self, name: str) -> dict[str, Any] | str:
        table = self._question.tables.get(name)
        return NO_TABLE if table is None else {"columns": [*table.numbers, *table.labels]}

    def _query(self, arguments: Mapping[str, Any]) -> dict[str, Any] | str:
        table = self._question.tables.get(arguments["table"])
        if table is None:
            return NO_TABLE
        where = Filter(column=arguments["where"], value=arguments["equals"]) if "where" in arguments else None
        try:
            values = table.select(arguments["column"], where)
        except KeyError:
            return NO_COLUMN
        return {"value": AGGREGATES[arguments["agg"]](values)} if values else NO_ROWS

    def answer(self, value: str | None) -> float:
        return float(value == str(self._question.answer) and self._log.complete)

    def verdict(self) -> float:
        return 0.0

    def potential(self) -> float:
        return self._log.progress

    def state(self) -> dict[str, Any]:
        return {"done": self._log.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._log.restore(state["done"])


def _calc(a: int, op: str, b: int) -> dict[str, Any] | str:
    result = OPERATIONS[op](int(a), int(b))
    return {"value": result} if 0 <= result <= LARGEST else OUT_OF_RANGE


def query_call(part: Part) -> PlannedCall:
    """The query that answers one part."""
    arguments = {"table": part.table, "agg": part.aggregate, "column": part.column}
    if part.where is not None:
        arguments |= {"where": part.where.column, "equals": part.where.value}
    return PlannedCall(name="query", arguments=arguments)


def needed_calls(question: Question) -> Iterator[PlannedCall]:
    """The calls that solve the question, in order; tables are looked through in the order in which they are listed."""
    if question.shape.discovery:
        yield PlannedCall(name="tables", arguments={})
        wanted = {part.table for part in question.parts}
        names = list(question.tables)
        last = max(names.index(name) for name in wanted)
        yield from (PlannedCall(name="columns", arguments={"table": name}) for name in names[: last + 1])
    yield query_call(question.parts[0])
    for index, operation in enumerate(question.operations, start=1):
        yield query_call(question.parts[index])
        operands = {"a": question.totals[index - 1], "op": operation, "b": question.values[index]}
        yield PlannedCall(name="calc", arguments=operands)
