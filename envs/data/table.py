"""Tables and aggregates: the arithmetic of the data family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Aggregate = Callable[[Sequence[int]], int]

AGGREGATES: Mapping[str, Aggregate] = {"sum": sum, "max": max, "min": min, "count": len}
OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"add": lambda a, b: a + b, "subtract": lambda a, b: a - b}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Rows whose `column` equals `value`."""

    column: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of equal length, in the order in which they are listed.

    Attributes:
        numbers: column -> its values.
        labels: column -> its values, to filter by.
    """

    numbers: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, tuple[str, ...]]

    def select(self, column: str, where: Filter | None) -> tuple[int, ...]:
        """The values of a number column in the rows that `where` leaves.

        Raises:
            KeyError: no such number column, or no such label column to filter by.
        """
        values = self.numbers[column]
        if where is None:
            return values
        labels = self.labels[where.column]
        return tuple(value for value, label in zip(values, labels, strict=True) if label == where.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One aggregate of a question."""

    table: str
    aggregate: str
    column: str
    where: Filter | None = None
