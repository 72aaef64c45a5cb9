"""`bfcl_source`: the four multi-turn categories as levels 1 to 4."""

from __future__ import annotations

from cacherl.environment_settings import EnvSection
from envs.adapters.bfcl.package import CATEGORIES, Entry, entries
from envs.adapters.bfcl.prompt import first_messages
from envs.adapters.bfcl.world import BfclWorld
from envs.adapters.suite import SuiteSource
from envs.base import Solution, SolutionStep


def bfcl_source(section: EnvSection) -> SuiteSource[Entry]:
    """The suite; a scenario is held out in all categories, or in none.

    Raises:
        ConfigError: the package bfcl-eval is absent; the tool-result cache is on.
    """
    levels = {level: entries(category) for level, category in CATEGORIES.items()}
    return SuiteSource(
        section,
        "bfcl",
        levels,
        messages=first_messages,
        start=BfclWorld,
        solution=_solution,
        related=True,
    )


def _solution(entry: Entry) -> Solution:
    """The ground truth, with a turn without a call at the end of each turn of the user's but the last."""
    steps: list[SolutionStep] = []
    for turn in entry.truth:
        steps += [SolutionStep(call=call) for call in turn]
        steps.append(SolutionStep(call=None))
    return Solution(steps=tuple(steps[:-1]), answer="done", guess="done")
