"""`ReportsFamily`: "Begin at alfeld works. Report founder, then birthplace, then mayor. Then answer done." """

from __future__ import annotations

from collections.abc import Iterator

from envs.base import Solution, SolutionStep
from envs.jsontext import compact
from envs.observation import render_error
from envs.reports.library import LEVELS, Library, build_library
from envs.reports.names import ADDITIONS, FIELDS, IDS, NAMES
from envs.reports.simulator import DONE, NOT_FOUND, TOOLS, ReportSimulator, needed_calls
from envs.simulator import Scenario

#: What an agent that gives up at once would say.
_NOTHING = "nothing"


class ReportsFamily:
    """Draws libraries; see `envs.reports.library` for levels and splits."""

    name = "reports"
    tools = TOOLS

    def levels(self, split: str) -> tuple[int, ...]:
        return LEVELS.get(split, ())

    def build(self, *, split: str, level: int, seed: int) -> Scenario:
        library = build_library(split=split, level=level, seed=seed)
        return Scenario(
            prompt=question(library),
            params={"start": library.chain[0], "relations": list(library.relations)},
            solution=_solve(library),
            start=lambda: ReportSimulator(library),
        )

    def texts(self) -> Iterator[str]:
        yield from (*NAMES, *IDS, *FIELDS, _NOTHING)
        for additions in ADDITIONS.values():
            yield from additions
        yield from map(str, range(len(FIELDS) + 1))
        yield compact({IDS[0]: "a b", IDS[1]: "a b"})
        yield compact({"fields": 1})
        yield render_error(NOT_FOUND)


def question(library: Library) -> str:
    """The prompt: each field is a fact about the one before."""
    return f"Begin at {library.chain[0]}. Report {', then '.join(library.relations)}. Then answer {DONE}."


def _solve(library: Library) -> Solution:
    """A careless agent says that it is done after any document it has read."""
    steps = [SolutionStep(call=call, partial_answer=None if call.name == "search" else DONE) for call in needed_calls(library)]
    return Solution(steps=tuple(steps), answer=DONE, guess=_NOTHING)
