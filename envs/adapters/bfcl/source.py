"""`BfclSource`: the four multi-turn categories as levels 1 to 4."""

from __future__ import annotations

import random
from collections.abc import Iterator

from cacherl.config import EnvSection
from cacherl.errors import ConfigError
from envs.adapters.bfcl.package import CATEGORIES, Entry, entries
from envs.adapters.bfcl.prompt import first_messages, specs_of
from envs.adapters.bfcl.world import BfclWorld
from envs.base import TRAIN, VAL, ActionFormat, Solution, SolutionStep, Task, ToolSpec
from envs.noise import uniform
from envs.parser import action_format
from envs.simulated import SimulatedEnv
from envs.vocabulary import split_words

#: Share of the scenarios that are held out.
_HELD_OUT = 0.25


class BfclSource:
    """A task id reads 'bfcl/split/level/number'. A scenario is held out in all categories, or in none.

    Raises:
        ConfigError: the package bfcl-eval is absent; the tool-result cache is on, which has nothing to save here.
    """

    family = "bfcl"

    def __init__(self, section: EnvSection) -> None:
        if section.tool_cache.mode != "off":
            raise ConfigError("env.tool_cache: family 'bfcl' runs its tools in memory; leave mode 'off'")
        self._section = section
        self._format = action_format(section.action_format)
        self._entries = {level: entries(category) for level, category in CATEGORIES.items()}
        every = [entry for found in self._entries.values() for entry in found]
        self._tools = tuple({spec.name: spec for entry in every for spec in specs_of(entry)}.values())

    @property
    def format(self) -> ActionFormat:
        return self._format

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    def levels(self, split: str) -> tuple[int, ...]:
        return tuple(CATEGORIES) if split in (TRAIN, VAL) else ()

    def sample(self, rng: random.Random, *, split: str, level: int) -> Task:
        if level not in self.levels(split):
            raise ValueError(f"family 'bfcl' has levels {self.levels(split)} in split {split!r}, got level {level}")
        return self._task(split, level, rng.choice([n for n in range(len(self._entries[level])) if _split(n) == split]))

    def get(self, task_id: str) -> Task:
        try:
            family, split, level, number = task_id.split("/")
            if family == self.family and _split(int(number)) == split:
                return self._task(split, int(level), int(number))
        except (ValueError, LookupError):
            pass
        raise ValueError(f"task id {task_id!r} is none of bfcl/split/level/number")

    def solution(self, task: Task) -> Solution:
        """The ground truth, with a turn without a call at the end of each turn of the user's but the last."""
        steps: list[SolutionStep] = []
        for turn in self._entry(task).truth:
            steps += [SolutionStep(call=call) for call in turn]
            steps.append(SolutionStep(call=None))
        return Solution(steps=tuple(steps[:-1]), answer="done", guess="done")

    def tags(self) -> tuple[str, ...]:
        return self._format.tags

    def vocabulary(self) -> Iterator[str]:
        """Of the prompts only: these tasks are no matter for a tiny model."""
        seen: dict[str, None] = {}
        for level, found in self._entries.items():
            for entry in found:
                for message in self._task(_split(entry.number), level, entry.number).messages:
                    seen.update(dict.fromkeys(split_words(message.content, self.tags())))
        return (piece for piece in seen if piece not in self.tags())

    def make_env(self) -> SimulatedEnv:
        return SimulatedEnv(
            lambda task: BfclWorld(self._entry(task)),
            tools=self._tools,
            action_format=self._format,
            failure_rate=self._section.transient_failure_rate,
            latency_s=self._section.latency_s,
        )

    def _entry(self, task: Task) -> Entry:
        return self._entries[task.level][task.seed]

    def _task(self, split: str, level: int, number: int) -> Task:
        entry = self._entries[level][number]
        return Task(
            task_id=f"{self.family}/{split}/{level}/{number}",
            family=self.family,
            split=split,
            level=level,
            seed=number,
            messages=first_messages(entry, self._format),
        )


def _split(number: int) -> str:
    return VAL if uniform("bfcl", number) < _HELD_OUT else TRAIN
