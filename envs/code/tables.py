"""Tables as rows, as CSV and as SQL; and the arithmetic that a question asks for, done in this process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envs.code.names import NAME, PEOPLE_TABLE, PERSON

Value = int | str
Row = Mapping[str, Value]

#: Functions of at least one number; a median is taken of an odd number of values only, so it is one of them.
FUNCTIONS: Mapping[str, Callable[[Sequence[int]], int]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "median": lambda values: int(statistics.median(values)),
    "spread": lambda values: max(values) - min(values),
}
EXTREMES: Mapping[str, Callable[[Iterable[int]], int]] = {"largest": max, "smallest": min}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows with the same columns, in order."""

    name: str
    rows: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.rows[0])

    def csv(self) -> str:
        """As the text of a CSV file."""
        lines = [self.columns, *([str(value) for value in row.values()] for row in self.rows)]
        return "".join(",".join(line) + "\n" for line in lines)

    def sql(self) -> str:
        """As SQL statements that make it."""
        kinds = ["INTEGER" if isinstance(value, int) else "TEXT" for value in self.rows[0].values()]
        columns = ", ".join(f"{name} {kind}" for name, kind in zip(self.columns, kinds, strict=True))
        rows = ", ".join("(" + ", ".join(map(_literal, row.values())) + ")" for row in self.rows)
        return f"CREATE TABLE {self.name} ({columns});\nINSERT INTO {self.name} VALUES {rows};\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is asked of one table: a function of a number column over some rows.

    Attributes:
        label: column to choose or to group rows by; of `people` when `joined`.
        value: its value in the chosen rows; None: the rows are grouped by it.
        extreme: which of the groups is meant ('largest' or 'smallest' result); None when there are none.
        above: (column, bound): only rows with a larger value there; None: all.
    """

    function: str
    column: str
    table: str
    label: str
    value: str | None
    joined: bool = False
    extreme: str | None = None
    above: tuple[str, int] | None = None

    def groups(self, tables: Mapping[str, Table]) -> dict[str, list[int]]:
        """The numbers of the rows that are meant, by label."""
        labels = {row[NAME]: row for row in tables[PEOPLE_TABLE].rows}
        found: dict[str, list[int]] = {}
        for row in tables[self.table].rows:
            label = str((labels[row[PERSON]] if self.joined else row)[self.label])
            low = self.above is not None and int(row[self.above[0]]) <= self.above[1]
            if not low and self.value in (None, label):
                found.setdefault(label, []).append(int(row[self.column]))
        return found

    def result(self, tables: Mapping[str, Table]) -> int:
        """The answer.

        Raises:
            ValueError: no row is meant.
        """
        results = [FUNCTIONS[self.function](values) for values in self.groups(tables).values()]
        return EXTREMES[self.extreme or "largest"](results)

    def shortcuts(self, tables: Mapping[str, Table]) -> set[int]:
        """What comes out where the label, the groups or the bound are left out, or more than one of them."""
        found = set() if self.above is None else {replace(self, above=None).result(tables)}
        for above in {self.above, None}:
            groups = replace(self, value=None, above=above).groups(tables)
            found.add(FUNCTIONS[self.function]([value for values in groups.values() for value in values]))
        return found


def _literal(value: Value) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"
