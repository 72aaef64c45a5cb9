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
from envs.mix import Part, parts_of
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
        self._curricula = {
            family: Curriculum(config.curriculum, _levels(part, source, config, TRAIN), family=family, seed=config.run.seed)
            for family, part in parts_of(source).items()
            if config.curriculum.enabled and _levels(part, source, config, TRAIN)
        }
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
        distinct = self._config.env.train_tasks
        place = number % distinct if distinct else number
        if not self._curricula:
            return draw_task(self._source, self._config, split=TRAIN, number=place)
        family = _family(self._source, self._config, TRAIN, number)
        choice = self._curricula[family].choose(number)
        task = (
            draw_task(self._source, self._config, split=TRAIN, number=place, family=family, level=choice.level)
            if choice.task_id is None
            else self._source.get(choice.task_id)
        )
        self._dispatched[group_id] = (task, choice.task_id is None)
        return task

    def observe(self, report: GroupReport) -> None:
        """Take in what became of a group of this stream; groups of others, and failed ones, teach nothing."""
        task, fresh = self._dispatched.pop(report.group_id, (None, False))
        if task is None or not report.episodes:
            return
        by_return = self._config.advantage.zero_variance == "return"
        results = {episode.total_reward if by_return else episode.outcome for episode in report.episodes}
        success = fmean(episode.outcome for episode in report.episodes)
        self._curricula[task.family].observe(task, success=success, varied=len(results) > 1, fresh=fresh)

    def metrics(self) -> dict[str, float]:
        """State of the curriculum, in a mix that of each family; empty without one."""
        found = {family: curriculum.metrics() for family, curriculum in self._curricula.items()}
        if len(found) < 2:
            return next(iter(found.values()), {})
        return {_of_family(name, family): value for family, values in found.items() for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain JSON values. Groups that are still being played are not part of it."""
        states = {family: curriculum.state_dict() for family, curriculum in self._curricula.items()}
        return {"next": self._next, "curriculum": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; a curriculum that only the saved or only this run has begins anew."""
        self._next = state["next"]
        self._dispatched.clear()
        for family, curriculum in self._curricula.items():
            if family in state["curriculum"]:
                curriculum.load_state_dict(state["curriculum"][family])


def draw_task(
    source: TaskSource, config: RunConfig, *, split: str, number: int, family: str | None = None, level: int | None = None
) -> Task:
    """Task `number` of a split. Families come by weight, and the levels of each alternate, unless it is said which."""
    part = parts_of(source)[family or _family(source, config, split, number)]
    levels = _levels(part, source, config, split)
    rng = random.Random(derive_seed(config.run.seed, split, number))
    return part.source.sample(rng, split=split, level=levels[number % len(levels)] if level is None else level)


def _family(source: TaskSource, config: RunConfig, split: str, number: int) -> str:
    parts = {name: part for name, part in parts_of(source).items() if _levels(part, source, config, split)}
    rng = random.Random(derive_seed(config.run.seed, "family", split, number))
    return rng.choices(list(parts), [part.weight for part in parts.values()])[0]


def _levels(part: Part, source: TaskSource, config: RunConfig, split: str) -> tuple[int, ...]:
    """The levels of the run that this family has, in the run's order."""
    return tuple(level for level in training_levels(source, config.env) if level in part.source.levels(split))


def _of_family(name: str, family: str) -> str:
    """'curriculum/success/level1' -> 'curriculum/success/trip/level1', 'curriculum/level' -> 'curriculum/level/trip'."""
    section, kind, *rest = name.split("/")
    return "/".join((section, kind, family, *rest))


def held_out_tasks(source: TaskSource, config: RunConfig) -> list[Task]:
    """The `eval.tasks` tasks of every evaluation of this run."""
    return [draw_task(source, config, split=VAL, number=number) for number in range(config.eval.tasks)]
