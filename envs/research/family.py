"""`ResearchFamily`: questions such as "Who is velor's rival's friend?", with the relations in the order to follow.

Level k asks for k hops. Each hop takes `search` (person -> document id) and `read` (id, field -> person).
"""

from __future__ import annotations

from collections.abc import Iterator

from envs.base import PlannedCall, Solution, SolutionStep
from envs.jsontext import compact
from envs.observation import render_error
from envs.research.names import IDS, NAMES, RELATIONS
from envs.research.simulator import NOT_FOUND, TOOLS, ResearchSimulator
from envs.research.world import LEVELS, World, build_world
from envs.simulator import Scenario


class ResearchFamily:
    """Draws research worlds; see `envs.research.world` for the splits."""

    name = "research"
    tools = TOOLS

    def levels(self, split: str) -> tuple[int, ...]:
        return LEVELS.get(split, ())

    def build(self, *, split: str, level: int, seed: int) -> Scenario:
        world = build_world(split=split, level=level, seed=seed)
        return Scenario(
            prompt=question(world.chain[0], world.relations),
            params={"start": world.chain[0], "relations": list(world.relations)},
            solution=_solve(world),
            start=lambda: ResearchSimulator(world),
        )

    def texts(self) -> Iterator[str]:
        yield from NAMES
        yield from IDS
        yield from RELATIONS
        yield compact({"id": IDS[0]})
        yield compact({"value": NAMES[0]})
        yield render_error(NOT_FOUND)


def question(start: str, relations: tuple[str, ...]) -> str:
    """The prompt: possessives put the relations in the order in which they are followed."""
    return "Who is " + "'s ".join((start, *relations)) + "?"


def _solve(world: World) -> Solution:
    steps = []
    for person, relation, value in zip(world.chain, world.relations, world.chain[1:], strict=False):
        read = PlannedCall(name="read", arguments={"id": world.ids[person], "field": relation})
        steps += [
            SolutionStep(call=PlannedCall(name="search", arguments={"name": person})),
            SolutionStep(call=read, partial_answer=value),
        ]
    return Solution(steps=tuple(steps), answer=world.chain[-1], guess=world.chain[0])
