"""`CodeFamily`: "What is the largest sum of price in orders for any city?" """

from __future__ import annotations

from collections.abc import Iterator

from envs.base import Solution, SolutionStep, ToolSpec
from envs.code.names import GROUPS, LABELS, LARGEST, NAME, NUMBERS, PEOPLE, PEOPLE_TABLE, PERSON, TABLES
from envs.code.programs import solving_calls
from envs.code.question import DEEP, LEVELS, Question, build_question
from envs.code.simulator import ERRORS, SHELL, TOOLS, CodeSimulator
from envs.code.tables import EXTREMES, FUNCTIONS
from envs.jsontext import compact
from envs.observation import render_error
from envs.sandbox.sandbox import Sandbox, World
from envs.simulator import Scenario

_SPOKEN = {"spread": "max minus min"}
#: Errors of Python and SQL that are common enough to be words of a small model.
_COMMON_ERRORS = (
    "NameError: name 'rows' is not defined, line 1",
    "SyntaxError: invalid syntax, line 1",
    'OperationalError: near "rows": syntax error',
    "OperationalError: incomplete input",
    "OperationalError: no such column: price",
    "OperationalError: no such table: orders",
    "KeyError: 'price', line 1",
)


class CodeFamily:
    """Draws questions whose code runs in `sandbox`; see `envs.code.question` for levels and splits."""

    name = "code"

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (*TOOLS, SHELL) if "shell" in self._sandbox.tools else TOOLS

    def levels(self, split: str) -> tuple[int, ...]:
        return LEVELS.get(split, ())

    def build(self, *, split: str, level: int, seed: int) -> Scenario:
        question = build_question(split=split, level=level, seed=seed)
        return Scenario(
            prompt=prompt(question),
            params={"function": question.measure.function, "label": question.measure.label},
            solution=_solve(question),
            start=lambda: CodeSimulator(question, lambda asked: self._sandbox.session(_world(asked, seed))),
        )

    def texts(self) -> Iterator[str]:
        yield from (*TABLES, *NUMBERS, *FUNCTIONS, *_SPOKEN.values(), *EXTREMES, *PEOPLE, PEOPLE_TABLE, NAME, PERSON)
        for label, values in (LABELS | GROUPS).items():
            yield from (label, *values)
        yield from map(str, range(LARGEST + 1))
        yield from map(render_error, (*ERRORS, *_COMMON_ERRORS))
        yield from (compact({"output": text}) for text in ("", "1"))
        for level in LEVELS[DEEP]:
            example = build_question(split=DEEP, level=level, seed=0)
            yield prompt(example)
            yield from (compact(dict(call.arguments)) for call in solving_calls(example))
            schema = "\n".join(table.sql().split(";")[0] for table in example.tables.values())
            yield compact({"output": schema})


def _world(question: Question, seed: int) -> World:
    return World(
        files={f"{table.name}.csv": table.csv() for table in question.tables.values()},
        script="".join(table.sql() for table in question.tables.values()),
        seed=seed,
    )


def prompt(question: Question) -> str:
    """The question in words; it names the table unless that is to be discovered."""
    measure = question.measure
    text = f"{_SPOKEN.get(measure.function, measure.function)} of {measure.column}"
    if not question.shape.discovery:
        text += f" in {measure.table}"
    if measure.above is not None:
        text += f" where {measure.above[0]} is above {measure.above[1]}"
    if measure.extreme is not None:
        owner = f" of {PEOPLE_TABLE}" if measure.joined else ""
        return f"What is the {measure.extreme} {text} for any {measure.label}{owner}?"
    joint = f"for {PEOPLE_TABLE} whose" if measure.joined else "where" if measure.above is None else "and"
    return f"What is the {text} {joint} {measure.label} is {measure.value}?"


def _solve(question: Question) -> Solution:
    steps = tuple(SolutionStep(call=call) for call in solving_calls(question))
    return Solution(steps=steps, answer=str(question.answer), guess="0")
