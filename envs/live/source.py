"""`LiveSource`: a `TaskSource` of questions that live tools help to answer.

def make_source(section):                      # env.name=my_package.my_env:make_source
    return LiveSource(section, "weather", [toolkit], [
        LiveTask(
            prompt="How warm is it in Bern?", answer="12",
            calls=(PlannedCall(name="weather", arguments={"city": "Bern"}),),
        ),
    ])
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from cacherl.trajectory import Message
from envs.answer import ANSWER_TAG, render_answer
from envs.base import TRAIN, VAL, ActionFormat, PlannedCall, Solution, SolutionStep, Task, ToolSpec
from envs.live.listing import listed_tools
from envs.live.toolkit import Toolkit, named_once
from envs.live.tools import LiveTools
from envs.live.world import LiveWorld
from envs.observation import TRANSIENT, UNRECORDED, render_error
from envs.parser import PROBLEMS, action_format
from envs.schema import Toolbox
from envs.tool_cache.cache import open_cache
from envs.vocabulary import distinct_words
from envs.world_env import WorldEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """A question.

    Attributes:
        answer: the one right answer.
        calls: calls that lead to it, all of which are needed; empty: not known, so that the answer alone counts.
        splits: where it occurs.

    Raises:
        ValueError: no turn can state such an answer.
    """

    prompt: str
    answer: str
    calls: tuple[PlannedCall, ...] = ()
    level: int = 1
    splits: tuple[str, ...] = (TRAIN, VAL)

    def __post_init__(self) -> None:
        if not isinstance(self.answer, str) or self.answer != self.answer.strip() or ANSWER_TAG in self.answer:
            raise ValueError(
                f"LiveTask answer must be text without white space at its ends and without {ANSWER_TAG}, for it is compared "
                f"with what the agent writes, got {self.answer!r}"
            )


class LiveSource:
    """Draws tasks from a list. A task id reads 'family/split/level/index'.

    Args:
        texts: every further text that can occur, for the tiny model's tokenizer; recorded results are looked up by themselves.

    Raises:
        ConfigError: a mode that replays, and the tools were never recorded; two tools, or two toolkits, of one
            name.
    """

    def __init__(
        self,
        section: EnvSection,
        family: str,
        toolkits: Sequence[Toolkit],
        tasks: Sequence[LiveTask],
        *,
        texts: Iterable[str] = (),
    ) -> None:
        self._section = section
        self._family = family
        self._toolkits = tuple(toolkits)
        self._tasks = tuple(tasks)
        self._extra = tuple(texts)
        self._format = action_format(section.action_format)
        self._cache = open_cache(section.tool_cache)
        named_once("toolkits", [(toolkit.name, toolkit) for toolkit in toolkits])  # what is recorded goes by the name
        listed = [listed_tools(toolkit, section.tool_cache.mode, self._cache) for toolkit in toolkits]
        try:
            self._toolbox = Toolbox([spec for specs in listed for spec in specs])
        except ValueError as error:
            raise ConfigError(f"environment {family!r}: {error}") from error
        self._owners = {spec.name: index for index, specs in enumerate(listed) for spec in specs}

    @property
    def family(self) -> str:
        return self._family

    @property
    def format(self) -> ActionFormat:
        return self._format

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._toolbox.specs

    def levels(self, split: str) -> tuple[int, ...]:
        return tuple(sorted({task.level for task in self._tasks if split in task.splits}))

    def sample(self, rng: random.Random, *, split: str, level: int) -> Task:
        found = [index for index, task in enumerate(self._tasks) if split in task.splits and task.level == level]
        if not found:
            raise ValueError(f"family {self.family!r} has levels {self.levels(split)} in split {split!r}, got level {level}")
        return self._task(split, rng.choice(found))

    def get(self, task_id: str) -> Task:
        head, _, index = task_id.rpartition("/")
        family, _, rest = head.rpartition("/")[0].rpartition("/")
        if family == self.family and index.isdecimal() and int(index) < len(self._tasks):
            task = self._task(rest, int(index))
            if task.task_id == task_id and rest in self._tasks[int(index)].splits:
                return task
        raise ValueError(f"task id {task_id!r} is none of {self.family}/split/level/index")

    def solution(self, task: Task) -> Solution:
        found = self._tasks[task.seed]
        return Solution(steps=tuple(SolutionStep(call=call) for call in found.calls), answer=found.answer, guess="unknown")

    def tags(self) -> tuple[str, ...]:
        return self._format.tags

    def vocabulary(self) -> Iterator[str]:
        return distinct_words(self._texts(), self.tags())

    def make_env(self) -> WorldEnv:
        return WorldEnv(
            self._world,
            tools=self._toolbox.specs,
            action_format=self._format,
            failure_rate=self._section.transient_failure_rate,
            latency_s=self._section.latency_s,
        )

    def _world(self, task: Task) -> LiveWorld:
        toolkits = [
            LiveTools(toolkit, task, read_only=self._toolbox.read_only, cache=self._cache) for toolkit in self._toolkits
        ]
        calls_matter = bool(self._tasks[task.seed].calls)
        return LiveWorld(toolkits, self._owners, toolbox=self._toolbox, solution=self.solution(task), calls_matter=calls_matter)

    def _task(self, split: str, index: int) -> Task:
        found = self._tasks[index]
        return Task(
            task_id=f"{self.family}/{split}/{found.level}/{index}",
            family=self.family,
            split=split,
            level=found.level,
            seed=index,
            messages=(Message(role="user", content=found.prompt),),
        )

    def _texts(self) -> Iterator[str]:
        yield from self._extra
        for error in (TRANSIENT, UNRECORDED, *PROBLEMS, *self._toolbox.messages()):
            yield render_error(error)
        for task in self._tasks:
            yield task.prompt
            yield render_answer(task.answer)
            yield from (self._format.render([call]) for call in task.calls)
        if self._cache is not None:
            yield from self._cache.texts()
