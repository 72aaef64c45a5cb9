"""`build_question`: tables and a question about them, drawn from a seed.

A question has one to three aggregates, combined from left to right by plus and minus. Neither 0 nor a value on the way is
the answer. Splits are disjoint by hash: an aggregate (function, column, table) belongs to 'val' or to the others, and
some (function, operation, function) occur in 'comp' only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from envs.base import TRAIN, VAL
from envs.data.names import LABELS, NUMBERS, ROWS, TABLES, VALUES
from envs.data.table import AGGREGATES, OPERATIONS, Filter, Part, Table
from envs.noise import uniform

COMP, DEEP = "comp", "deep"

_TABLES = 3
_COLUMNS = 3
_VAL_SHARE = 0.25
_COMP_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a level asks for.

    Attributes:
        parts: aggregates in the question.
        filters: each is over the rows with a given label.
        discovery: the question does not name the tables; they have to be found by their columns.
    """

    parts: int
    filters: bool = False
    discovery: bool = False


SHAPES: Mapping[int, Shape] = {
    1: Shape(parts=1),
    2: Shape(parts=1, filters=True),
    3: Shape(parts=2),
    4: Shape(parts=1, filters=True, discovery=True),
    5: Shape(parts=2, filters=True, discovery=True),
    6: Shape(parts=3),
    7: Shape(parts=3, filters=True),
}
LEVELS: Mapping[str, tuple[int, ...]] = {TRAIN: (1, 2, 3, 4, 5), VAL: (1, 2, 3, 4, 5), COMP: (3, 5), DEEP: (6, 7)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Tables, and what is asked about them.

    Attributes:
        tables: name -> table, in the order in which they are listed.
        parts: the aggregates, one more than `operations`.
        values: what each aggregate comes to.
        totals: the running result after each part; the last is the answer.
    """

    shape: Shape
    tables: Mapping[str, Table]
    parts: tuple[Part, ...]
    operations: tuple[str, ...]
    values: tuple[int, ...]
    totals: tuple[int, ...]

    @property
    def answer(self) -> int:
        """The last of the totals."""
        return self.totals[-1]


def is_val_part(aggregate: str, column: str, table: str) -> bool:
    """Whether the aggregate belongs to 'val', and so to no other split."""
    return uniform("part", aggregate, column, table) < _VAL_SHARE


def is_comp_pair(first: str, operation: str, second: str) -> bool:
    """Whether the two functions are combined so in 'comp' only."""
    return uniform("functions", first, operation, second) < _COMP_SHARE


def build_question(*, split: str, level: int, seed: int) -> Question:
    """The tables and the question of a seed, at `level`."""
    rng = random.Random(f"data {split} {level} {seed}")
    while (question := _draw(rng, split, SHAPES[level])) is None:
        pass
    return question


def _draw(rng: random.Random, split: str, shape: Shape) -> Question | None:
    """A question, or None when the draw breaks a rule."""
    tables = _draw_tables(rng)
    allowed = _parts_of(tables, split, shape)
    if len(allowed) < shape.parts:
        return None
    parts = tuple(_add_filter(rng, tables, part) if shape.filters else part for part in rng.sample(allowed, shape.parts))
    operations = tuple(rng.choice(list(OPERATIONS)) for _ in parts[1:])
    combined = zip(pairwise(part.aggregate for part in parts), operations, strict=True)
    held_out = any(is_comp_pair(first, operation, second) for (first, second), operation in combined)
    if held_out != (split == COMP):
        return None
    values = tuple(AGGREGATES[part.aggregate](tables[part.table].select(part.column, part.where)) for part in parts)
    totals = [values[0]]
    for operation, value in zip(operations, values[1:], strict=True):
        totals.append(OPERATIONS[operation](totals[-1], value))
    if min(totals) <= 0 or totals[-1] in (*values[1:], *totals[:-1]):
        return None
    return Question(shape=shape, tables=tables, parts=parts, operations=operations, values=values, totals=tuple(totals))


def _draw_tables(rng: random.Random) -> dict[str, Table]:
    """Tables that share no column, so that a number column tells its table."""
    numbers = rng.sample(NUMBERS, _TABLES * _COLUMNS)
    labels = rng.sample(list(LABELS), _TABLES)
    tables = {}
    for index, name in enumerate(rng.sample(TABLES, _TABLES)):
        columns = numbers[index * _COLUMNS : (index + 1) * _COLUMNS]
        tables[name] = Table(
            numbers={column: tuple(rng.choices(VALUES, k=ROWS)) for column in columns},
            labels={labels[index]: tuple(rng.choices(rng.sample(LABELS[labels[index]], 2), k=ROWS))},
        )
    return tables


def _parts_of(tables: Mapping[str, Table], split: str, shape: Shape) -> list[Part]:
    """Every aggregate that the split may ask for; to count all rows would tell nothing."""
    return [
        Part(table=name, aggregate=aggregate, column=column)
        for name, table in tables.items()
        for column in table.numbers
        for aggregate in AGGREGATES
        if (shape.filters or aggregate != "count") and is_val_part(aggregate, column, name) == (split == VAL)
    ]


def _add_filter(rng: random.Random, tables: Mapping[str, Table], part: Part) -> Part:
    """The same aggregate over the rows with one label that occurs."""
    column, labels = rng.choice(list(tables[part.table].labels.items()))
    return replace(part, where=Filter(column=column, value=rng.choice(labels)))
