"""Which tasks a run plays, in which order: a function of the run's seed alone."""

from __future__ import annotations

import random

from actors.rollout import GroupRequest, derive_seed
from cacherl.config import RunConfig
from envs.base import TRAIN, VAL, Task, TaskSource


class TaskStream:
    """Endless stream of training groups; group n is the same whichever actor plays it.

    Args:
        prefix: makes group ids unique among runs that share a replay server.
    """

    def __init__(self, source: TaskSource, config: RunConfig, prefix: str) -> None:
        self._source = source
        self._config = config
        self.prefix = prefix
        self._next = 0

    def __call__(self) -> GroupRequest:
        number, self._next = self._next, self._next + 1
        distinct = self._config.env.train_tasks
        return GroupRequest(
            group_id=f"{self.prefix}-{number:08d}",
            task=draw_task(self._source, self._config, split=TRAIN, number=number % distinct if distinct else number),
            size=self._config.rollout.group_size,
            seed=derive_seed(self._config.run.seed, "group", number),
        )


def draw_task(source: TaskSource, config: RunConfig, *, split: str, number: int) -> Task:
    """Task `number` of a split; the levels of `env.levels` alternate."""
    levels = config.env.levels
    rng = random.Random(derive_seed(config.run.seed, split, number))
    return source.sample(rng, split=split, level=levels[number % len(levels)])


def held_out_tasks(source: TaskSource, config: RunConfig) -> list[Task]:
    """The `eval.tasks` tasks of every evaluation of this run."""
    return [draw_task(source, config, split=VAL, number=number) for number in range(config.eval.tasks)]
