"""`build_question`: tables and a question about them, drawn from a seed.

Splits are disjoint by hash: a (function, column, table) belongs to 'val' or to the others, and some (function, label column)
occur in 'comp' only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from envs.base import TRAIN, VAL
from envs.code.names import GROUPS, LABELS, NAME, NUMBERS, PEOPLE, PEOPLE_TABLE, PERSON, ROWS, SMALLEST, TABLES, VALUES
from envs.code.tables import EXTREMES, Measure, Table
from envs.noise import uniform

COMP, DEEP = "comp", "deep"

_TABLES = 3
_COLUMNS = 3
_VAL_SHARE = 0.25
_COMP_SHARE = 0.25
_SIMPLE = ("sum", "max", "min")
#: How many times as large the numbers of the other question may be; which of them is up to its tables.
_FACTORS = range(3, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a level asks for.

    Attributes:
        functions: to draw from.
        above: rows are also chosen by the size of another number.
        grouped: the largest or smallest result of any group.
        joined: rows are chosen or grouped by what the table of people says.
        discovery: the question names no table; it has to be found by its columns.
    """

    functions: tuple[str, ...] = _SIMPLE
    above: bool = False
    grouped: bool = False
    joined: bool = False
    discovery: bool = False


SHAPES: Mapping[int, Shape] = {
    1: Shape(),
    2: Shape(above=True),
    3: Shape(functions=("median", "spread")),
    4: Shape(grouped=True),
    5: Shape(joined=True, discovery=True),
    6: Shape(joined=True, discovery=True, grouped=True),
    7: Shape(joined=True, discovery=True, grouped=True, above=True),
}
LEVELS: Mapping[str, tuple[int, ...]] = {
    TRAIN: (1, 2, 3, 4, 5),
    VAL: (1, 2, 3, 4, 5),
    COMP: (1, 2, 3, 4),
    DEEP: (6, 7),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Tables, and what is asked about them.

    Attributes:
        tables: name -> table, `people` last.
        answer: in [SMALLEST, LARGEST], not the bound of `measure`, and nothing that a shortcut comes to.
    """

    shape: Shape
    tables: Mapping[str, Table]
    measure: Measure
    answer: int

    @property
    def other(self) -> Question:
        """The same question about tables in which the numbers of the column are larger, in proportion: the same rows are meant,
        the same are the largest, and every answer grows with them."""
        table = self.tables[self.measure.table]
        column = self.measure.column
        factor = _FACTORS[int(uniform("other question", column, table.rows) * len(_FACTORS))]
        rows = tuple({**row, column: factor * int(row[column])} for row in table.rows)
        tables = {**self.tables, table.name: replace(table, rows=rows)}
        return replace(self, tables=tables, answer=self.measure.result(tables))


def is_val_measure(function: str, column: str, table: str) -> bool:
    """Whether the function of that column belongs to 'val', and so to no other split."""
    return uniform("measure", function, column, table) < _VAL_SHARE


def is_comp_pair(function: str, label: str) -> bool:
    """Whether the function is asked of rows with that label in 'comp' only."""
    return uniform("function of label", function, label) < _COMP_SHARE


def build_question(*, split: str, level: int, seed: int) -> Question:
    """The tables and the question of a seed, at `level`."""
    rng = random.Random(f"code {split} {level} {seed}")
    while (question := _draw(rng, split, SHAPES[level])) is None:
        pass
    return question


def _draw(rng: random.Random, split: str, shape: Shape) -> Question | None:
    """A question, or None when the draw breaks a rule."""
    tables = _draw_tables(rng)
    measure = _draw_measure(rng, tables, shape)
    held_out = is_val_measure(measure.function, measure.column, measure.table)
    unseen_pair = is_comp_pair(measure.function, measure.label)
    if held_out != (split == VAL) or unseen_pair != (split == COMP):
        return None
    groups = measure.groups(tables)
    if len(groups) < (2 if shape.grouped else 1) or any(len(values) < 2 for values in groups.values()):
        return None
    if measure.function == "median" and any(len(values) % 2 == 0 for values in groups.values()):
        return None
    answer = measure.result(tables)
    if answer < SMALLEST or (measure.above is not None and answer == measure.above[1]):
        return None
    if answer in measure.shortcuts(tables):
        return None
    return Question(shape=shape, tables=tables, measure=measure, answer=answer)


def _draw_tables(rng: random.Random) -> dict[str, Table]:
    """Tables that share no number column, so that one tells its table; and the people that their rows refer to."""
    numbers = rng.sample(NUMBERS, _TABLES * _COLUMNS)
    labels = rng.sample(list(LABELS), _TABLES)
    tables = {}
    for index, name in enumerate(rng.sample(TABLES, _TABLES)):
        columns, label = numbers[index * _COLUMNS : (index + 1) * _COLUMNS], labels[index]
        some = rng.sample(LABELS[label], 3)
        rows = tuple(
            {column: rng.choice(VALUES) for column in columns} | {label: rng.choice(some), PERSON: rng.choice(PEOPLE)}
            for _ in range(ROWS)
        )
        tables[name] = Table(name=name, rows=rows)
    people = tuple({NAME: name} | {label: rng.choice(values) for label, values in GROUPS.items()} for name in PEOPLE)
    return tables | {PEOPLE_TABLE: Table(name=PEOPLE_TABLE, rows=people)}


def _draw_measure(rng: random.Random, tables: Mapping[str, Table], shape: Shape) -> Measure:
    table = rng.choice([table for table in tables.values() if table.name != PEOPLE_TABLE])
    *numbers, label, _ = table.columns
    column, other = rng.sample(numbers, 2)
    if shape.joined:
        label = rng.choice(list(GROUPS))
    named = tables[PEOPLE_TABLE] if shape.joined else table
    return Measure(
        function=rng.choice(shape.functions),
        column=column,
        table=table.name,
        label=label,
        value=None if shape.grouped else str(rng.choice(named.rows)[label]),
        joined=shape.joined,
        extreme=rng.choice(list(EXTREMES)) if shape.grouped else None,
        above=(other, rng.choice(VALUES[4:20])) if shape.above else None,
    )
