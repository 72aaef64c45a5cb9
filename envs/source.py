"""`SimulatedSource`: a `TaskSource` around a `Family`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

from cacherl.environment_settings import EnvSection
from cacherl.trajectory import Message
from envs.answer import render_answer
from envs.base import TRAIN, ActionFormat, Solution, Task, ToolSpec
from envs.jsontext import canonical
from envs.observation import TRANSIENT, UNRECORDED, render_error
from envs.parser import PROBLEMS, action_format
from envs.schema import Toolbox
from envs.simulator import Family, Scenario, Simulator
from envs.tool_cache.cache import open_cache
from envs.vocabulary import distinct_words
from envs.world import SimulatedWorld
from envs.world_env import WorldEnv

#: Task seeds are drawn below this.
SEEDS = 2**31
#: Scenarios kept, as the siblings of a group all begin with the same one.
_KEPT = 256
#: Tasks of each split and level whose prompts and solutions are looked at for the vocabulary.
_VOCABULARY_SAMPLE = 8


class SimulatedSource:
    """Samples tasks of `family` and makes their environments as `section` says.

    A task id reads 'family/split/level/seed'. Scenarios are immutable, so keeping them shares no state between episodes.
    """

    def __init__(self, family: Family, section: EnvSection) -> None:
        self._family = family
        self._section = section
        self._toolbox = Toolbox(family.tools)
        self._format = action_format(section.action_format)
        self._cache = open_cache(section.tool_cache)
        self._scenario = lru_cache(maxsize=_KEPT)(self._build)

    @property
    def family(self) -> str:
        return self._family.name

    @property
    def format(self) -> ActionFormat:
        return self._format

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._toolbox.specs

    def levels(self, split: str) -> tuple[int, ...]:
        return self._family.levels(split)

    def sample(self, rng: random.Random, *, split: str, level: int) -> Task:
        return self._task(split, level, rng.randrange(SEEDS))

    def get(self, task_id: str) -> Task:
        try:
            family, split, level, seed = task_id.split("/")
            task = self._task(split, int(level), int(seed))
        except ValueError as error:
            raise ValueError(f"task id {task_id!r} is not of the form {self.family}/split/level/seed: {error}") from None
        if family != self.family:
            raise ValueError(f"task id {task_id!r} is of family {family!r}, not {self.family!r}")
        return task

    def solution(self, task: Task) -> Solution:
        return self._scenario(task.split, task.level, task.seed).solution

    def tags(self) -> tuple[str, ...]:
        return self._format.tags

    def vocabulary(self) -> Iterator[str]:
        return distinct_words(self._texts(), self.tags())

    def start(self, task: Task) -> Simulator:
        """The untouched world of a task."""
        return self._scenario(task.split, task.level, task.seed).start()

    def make_env(self) -> WorldEnv:
        return WorldEnv(
            self._world,
            tools=self._toolbox.specs,
            action_format=self._format,
            failure_rate=self._section.transient_failure_rate,
            latency_s=self._section.latency_s,
        )

    def _world(self, task: Task) -> SimulatedWorld:
        return SimulatedWorld(self.start(task), name=self._world_name(task), toolbox=self._toolbox, cache=self._cache)

    def _world_name(self, task: Task) -> str:
        """What tells this world from all others: the id of its task, and settings that make another world of it."""
        section = self._section
        told = section.model_dump(mode="json", include={"settings", "sandbox"}, exclude_defaults=True)
        return f"{task.task_id} {canonical(told)}" if told else task.task_id

    def _build(self, split: str, level: int, seed: int) -> Scenario:
        return self._family.build(split=split, level=level, seed=seed)

    def _task(self, split: str, level: int, seed: int) -> Task:
        levels = self.levels(split)
        if level not in levels:
            raise ValueError(f"family {self.family!r} has levels {levels} in split {split!r}, got level {level}")
        scenario = self._scenario(split, level, seed)
        return Task(
            task_id=f"{self.family}/{split}/{level}/{seed}",
            family=self.family,
            split=split,
            level=level,
            seed=seed,
            messages=(Message(role="user", content=scenario.prompt),),
            params=scenario.params,
        )

    def _texts(self) -> Iterator[str]:
        yield from self._family.texts()
        unrecorded = [UNRECORDED] if self._section.tool_cache.mode == "replay" else []
        for error in (TRANSIENT, *unrecorded, *PROBLEMS, *self._toolbox.messages()):
            yield render_error(error)
        for level in self.levels(TRAIN):
            for seed in range(_VOCABULARY_SAMPLE):
                scenario = self._scenario(TRAIN, level, seed)
                yield scenario.prompt
                yield render_answer(scenario.solution.answer)
                yield from (self._format.render([call]) for call in scenario.solution.calls)
                yield self._format.render(scenario.solution.calls[:2])
