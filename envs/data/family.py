"""`DataFamily`: "What is the sum of price in orders where city is oslo minus the max of age in visits where team is foxes?" """

from __future__ import annotations

from collections.abc import Iterator

from envs.base import Solution, SolutionStep
from envs.data.names import LABELS, LARGEST, NUMBERS, TABLES
from envs.data.question import LEVELS, Question, build_question
from envs.data.simulator import ERRORS, TOOLS, DataSimulator, needed_calls
from envs.data.table import AGGREGATES, OPERATIONS, Part
from envs.jsontext import compact
from envs.observation import render_error
from envs.simulator import Scenario

_SPOKEN = {"add": "plus", "subtract": "minus"}


class DataFamily:
    """Draws questions about tables; see `envs.data.question` for levels and splits."""

    name = "data"
    tools = TOOLS

    def levels(self, split: str) -> tuple[int, ...]:
        return LEVELS.get(split, ())

    def build(self, *, split: str, level: int, seed: int) -> Scenario:
        question = build_question(split=split, level=level, seed=seed)
        return Scenario(
            prompt=prompt(question),
            params={"parts": len(question.parts), "operations": list(question.operations)},
            solution=_solve(question),
            start=lambda: DataSimulator(question),
        )

    def texts(self) -> Iterator[str]:
        yield from (*TABLES, *NUMBERS, *AGGREGATES, *OPERATIONS, *_SPOKEN.values())
        for label, values in LABELS.items():
            yield from (label, *values)
        yield from map(str, range(LARGEST + 1))
        yield from map(render_error, ERRORS)
        yield compact({"value": 1})
        yield compact({"tables": list(TABLES[:2])})
        yield compact({"columns": list(NUMBERS[:2])})


def prompt(question: Question) -> str:
    """The question in words; it names the tables unless they are to be discovered."""
    named = not question.shape.discovery
    text = _phrase(question.parts[0], named=named)
    for operation, part in zip(question.operations, question.parts[1:], strict=True):
        text += f" {_SPOKEN[operation]} {_phrase(part, named=named)}"
    return f"What is {text}?"


def _phrase(part: Part, *, named: bool) -> str:
    text = f"the {part.aggregate} of {part.column}"
    if named:
        text += f" in {part.table}"
    return text if part.where is None else f"{text} where {part.where.column} is {part.where.value}"


def _solve(question: Question) -> Solution:
    steps, queries, calculations = [], 0, 0
    for call in needed_calls(question):
        partial = None
        if call.name == "query":
            partial = str(question.values[queries])
            queries += 1
        elif call.name == "calc":
            calculations += 1
            partial = str(question.totals[calculations])
        steps.append(SolutionStep(call=call, partial_answer=partial))
    return Solution(steps=tuple(steps), answer=str(question.answer), guess="0")
