"""Which tasks a run plays, in which order: a function of the run's seed and, with a curriculum, of what came of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from actors.report import GroupReport
from actors.rollout import GroupRequest, derive_seed
from cacherl.config import RunConfig
from deploy.curriculum import Curriculum
from envs.base import TRAIN, VAL, Task, TaskSource
from envs.registry import training_levels


class TaskStream:
    """Endless stream of training groups; without a curriculum, group n is the same whichever actor plays it.

    Args:
        prefix: makes group ids unique among runs that share a replay server.
    """

    def __init__(self, source: TaskSource, config: RunConfig, prefix: str) -> None:
        self._source = source
        self._config = config
        self.prefix = prefix
        self._next = 0
        self._curriculum = (
            Curriculum(config.curriculum, training_levels(source, config.env), seed=config.run.seed)
            if config.curriculum.enabled
            else None
        )
        self._dispatched: dict[str, tuple[Task, bool]] = {}

    def __call__(self) -> GroupRequest:
        number, self._next = self._next, self._next + 1
        group_id = f"{self.prefix}-{number:08d}"
        return GroupRequest(
            group_id=group_id,
            task=self._task(group_id, number),
            size=self._config.rollout.group_size,
            seed=derive_seed(self._config.run.seed, "group", number),
        )

    def _task(self, group_id: str, number: int) -> Task:
        if self._curriculum is None:
            return self._drawn(number, None)
        choice = self._curriculum.choose(number)
        task = self._drawn(number, choice.level) if choice.task_id is None else self._source.get(choice.task_id)
        self._dispatched[group_id] = (task, choice.task_id is None)
        return task

    def _drawn(self, number: int, level: int | None) -> Task:
        distinct = self._config.env.train_tasks
        place = number % distinct if distinct else number
        return draw_task(self._source, self._config, split=TRAIN, number=place, level=level)

    def observe(self, report: GroupReport) -> None:
        """Take in what became of a group of this stream; groups of others, and failed ones, teach nothing."""
        task, fresh = self._dispatched.pop(report.group_id, (None, False))
        if self._curriculum is None or task is None or not report.episodes:
            return
        by_return = self._config.advantage.zero_variance == "return"
        results = {episode.total_reward if by_return else episode.outcome for episode in report.episodes}
        success = fmean(episode.outcome for episode in report.episodes)
        self._curriculum.observe(task, success=success, varied=len(results) > 1, fresh=fresh)

    def metrics(self) -> dict[str, float]:
        """State of the curriculum; empty without one."""
        return self._curriculum.metrics() if self._curriculum else {}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain JSON values. Groups that are still being played are not part of it."""
        return {"next": self._next, "curriculum": self._curriculum.state_dict() if self._curriculum else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; a curriculum that only the saved or only this run has begins anew."""
        self._next = state["next"]
        self._dispatched.clear()
        if self._curriculum and state["curriculum"] is not None:
            self._curriculum.load_state_dict(state["curriculum"])


def draw_task(source: TaskSource, config: RunConfig, *, split: str, number: int, level: int | None = None) -> Task:
    """Task `number` of a split; the levels that the run plays alternate, unless `level` says which."""
    levels = training_levels(source, config.env)
    rng = random.Random(derive_seed(config.run.seed, split, number))
    return source.sample(rng, split=split, level=levels[number % len(levels)] if level is None else level)


def held_out_tasks(source: TaskSource, config: RunConfig) -> list[Task]:
    """The `eval.tasks` tasks of every evaluation of this run."""
    return [draw_task(source, config, split=VAL, number=number) for number in range(config.eval.tasks)]
