"""`SuiteSource`: a `TaskSource` over a fixed list of tasks, grouped into levels, whose prompts tell of their tools."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from cacherl.trajectory import Message
from envs.base import TRAIN, VAL, ActionFormat, Solution, Task, ToolSpec
from envs.noise import uniform
from envs.parser import action_format
from envs.vocabulary import distinct_words
from envs.world import World
from envs.world_env import WorldEnv

T = TypeVar("T")

#: Share of the tasks that are held out.
_HELD_OUT = 0.25


class SuiteSource(Generic[T]):
    """Draws from `levels`; a task id reads 'family/split/level/number'.

    Args:
        levels: level -> its tasks, in the suite's order.
        messages, start, solution: prompt, untouched world and solution of a task.
        form: how calls are written; None: as `section` says.
        related: tasks of one number in several levels are variants of each other, and held out together.

    Raises:
        ConfigError: the tool-result cache is on, which has nothing to save where tools run in memory.
    """

    def __init__(
        self,
        section: EnvSection,
        family: str,
        levels: Mapping[int, Sequence[T]],
        *,
        messages: Callable[[T, ActionFormat], tuple[Message, ...]],
        start: Callable[[T], World],
        solution: Callable[[T], Solution],
        related: bool = False,
        form: ActionFormat | None = None,
    ) -> None:
        if section.tool_cache.mode != "off":
            raise ConfigError(f"env.tool_cache: family {family!r} runs its tools in memory; leave mode 'off'")
        self._section = section
        self._family = family
        self._levels = levels
        self._messages = messages
        self._start = start
        self._solution = solution
        self._related = related
        self._format = action_format(section.action_format) if form is None else form

    @property
    def family(self) -> str:
        return self._family

    @property
    def format(self) -> ActionFormat:
        return self._format

    def tools(self) -> tuple[ToolSpec, ...]:
        return ()

    def levels(self, split: str) -> tuple[int, ...]:
        return tuple(self._levels) if split in (TRAIN, VAL) else ()

    def sample(self, rng: random.Random, *, split: str, level: int) -> Task:
        if level not in self.levels(split):
            raise ValueError(f"family {self.family!r} has levels {self.levels(split)} in split {split!r}, got level {level}")
        numbers = [number for number in range(len(self._levels[level])) if self._split(level, number) == split]
        return self._task(level, rng.choice(numbers))

    def get(self, task_id: str) -> Task:
        parts = task_id.split("/")
        if len(parts) == 4 and parts[2].isdecimal() and parts[3].isdecimal():
            level, number = int(parts[2]), int(parts[3])
            if number < len(self._levels.get(level, ())) and (task := self._task(level, number)).task_id == task_id:
                return task
        raise ValueError(f"task id {task_id!r} is none of {self.family}/split/level/number")

    def all_tasks(self, level: int) -> tuple[Task, ...]:
        """Every task of a level, of both splits, in the suite's order."""
        return tuple(self._task(level, number) for number in range(len(self._levels[level])))

    def solution(self, task: Task) -> Solution:
        return self._solution(self._item(task))

    def tags(self) -> tuple[str, ...]:
        return self._format.tags

    def vocabulary(self) -> Iterator[str]:
        """Of the prompts only: public suites are no matter for a tiny model."""
        tasks = (task for level in self._levels for task in self.all_tasks(level))
        return distinct_words((message.content for task in tasks for message in task.messages), self.tags())

    def make_env(self) -> WorldEnv:
        return WorldEnv(
            lambda task: self._start(self._item(task)),
            tools=(),
            action_format=self._format,
            failure_rate=self._section.transient_failure_rate,
            latency_s=self._section.latency_s,
        )

    def _item(self, task: Task) -> T:
        return self._levels[task.level][task.seed]

    def _split(self, level: int, number: int) -> str:
        key = (self.family, number) if self._related else (self.family, level, number)
        return VAL if uniform(*key) < _HELD_OUT else TRAIN

    def _task(self, level: int, number: int) -> Task:
        split = self._split(level, number)
        return Task(
            task_id=f"{self.family}/{split}/{level}/{number}",
            family=self.family,
            split=split,
            level=level,
            seed=number,
            messages=self._messages(self._levels[level][number], self._format),
        )
