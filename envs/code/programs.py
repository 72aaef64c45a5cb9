"""Programs that answer a question: what the oracle runs."""

from __future__ import annotations

from collections.abc import Iterator

from envs.base import PlannedCall
from envs.code.names import NAME, PEOPLE_TABLE, PERSON
from envs.code.question import Question
from envs.code.tables import Measure

_SQL_EXTREMES = {"largest": "max", "smallest": "min"}
SCHEMA = "SELECT sql FROM sqlite_master"


def solving_calls(question: Question) -> Iterator[PlannedCall]:
    """Calls that lead to the answer; the last one prints it. Both tools occur, and variables that outlast a call."""
    measure, shape = question.measure, question.shape
    if "median" in shape.functions:
        yield python(_load(measure.table))
        yield python(_reduce(measure))
    elif shape.above and not shape.joined:
        yield python(f"{_load(measure.table)}; {_reduce(measure)}")
    else:
        if shape.discovery:
            yield sql(SCHEMA)
        yield sql(_query(measure))


def python(code: str) -> PlannedCall:
    """A call of the tool `python`."""
    return PlannedCall(name="python", arguments={"code": code})


def sql(query: str) -> PlannedCall:
    """A call of the tool `sql`."""
    return PlannedCall(name="sql", arguments={"query": query})


def _load(table: str) -> str:
    return f"import csv, statistics; rows = list(csv.DictReader(open('{table}.csv')))"


def _reduce(measure: Measure) -> str:
    chosen = f"int(row['{measure.column}']) for row in rows if row['{measure.label}'] == '{measure.value}'"
    if measure.above is not None:
        chosen += f" and int(row['{measure.above[0]}']) > {measure.above[1]}"
    if measure.function == "median":
        return f"print(statistics.median({chosen}))"
    if measure.function == "spread":
        return f"found = [{chosen}]; print(max(found) - min(found))"
    return f"print({measure.function}({chosen}))"


def _query(measure: Measure) -> str:
    source = f"FROM {measure.table}"
    if measure.joined:
        source += f" JOIN {PEOPLE_TABLE} ON {PERSON} = {NAME}"
    rows = [] if measure.above is None else [f"{measure.above[0]} > {measure.above[1]}"]
    if measure.value is not None:
        rows.append(f"{measure.label} = '{measure.value}'")
    if rows:
        source += f" WHERE {' AND '.join(rows)}"
    value = f"{measure.function}({measure.column})"
    if measure.extreme is None:
        return f"SELECT {value} {source}"
    inner = f"SELECT {value} AS value {source} GROUP BY {measure.label}"
    return f"SELECT {_SQL_EXTREMES[measure.extreme]}(value) FROM ({inner})"
