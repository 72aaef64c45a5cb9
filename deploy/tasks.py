"""Which tasks a run plays, in which order: a function of the run's seed and, with a curriculum, of what came of them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from actors.report import GroupReport
from actors.rollout import GroupRequest, derive_seed
from cacherl.config import RunConfig
from cacherl.policy import FIRST_VERSION
from deploy.curriculum import Curriculum
from envs.base import TRAIN, VAL, Task, TaskSource
from envs.mix import Part, parts_of
from envs.registry import training_levels

#: Groups that the pool is asked for at once; more than can have been in flight between two that are known to it.
_SCAN = 4096


class TaskStream:
    """Endless stream of training groups; without a curriculum, group n is the same whichever actor plays it.

    It keeps a ledger of the groups that were handed out and have not come back: a resumed run plays exactly those again.

    Args:
        prefix: makes group ids unique among runs that share a replay server.
        scales: the reward's factors at the moment; all members of a group are scored with the same.
    """

    def __init__(
        self, source: TaskSource, config: RunConfig, prefix: str, scales: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        self._source = source
        self._config = config
        self.prefix = prefix
        self._scales = scales
        self._version = FIRST_VERSION
        self._next = 0
        self._curricula = {
            family: Curriculum(config.curriculum, _levels(part, source, config, TRAIN), family=family, seed=config.run.seed)
            for family, part in parts_of(source).items()
            if config.curriculum.enabled and _levels(part, source, config, TRAIN)
        }
        self._again: deque[int] = deque()
        self._open: dict[str, int] = {}
        self._chosen: dict[int, tuple[str, bool]] = {}

    def __call__(self) -> GroupRequest:
        number = self._again.popleft() if self._again else self._next
        self._next = max(self._next, number + 1)
        group_id = self._group_id(number)
        self._open[group_id] = number
        return GroupRequest(
            group_id=group_id,
            task=self._task(number),
            size=self._config.rollout.group_size,
            seed=derive_seed(self._config.run.seed, "group", number),
            scales=self._scales(),
            exploration=self._config.exploration.rate_at(self._version),
        )

    def set_version(self, version: int) -> None:
        """Take in how many updates the learner has made; exploration may end with them."""
        self._version = version

    def _task(self, number: int) -> Task:
        distinct = self._config.env.train_tasks
        place = number % distinct if distinct else number
        if not self._curricula:
            return draw_task(self._source, self._config, split=TRAIN, number=place)
        if number in self._chosen:
            return self._source.get(self._chosen[number][0])
        family = _family(self._source, self._config, TRAIN, number)
        choice = self._curricula[family].choose(number)
        task = (
            draw_task(self._source, self._config, split=TRAIN, number=place, family=family, level=choice.level)
            if choice.task_id is None
            else self._source.get(choice.task_id)
        )
        self._chosen[number] = task.task_id, choice.task_id is None
        return task

    def finished(self, group_id: str) -> None:
        """Take a group off the ledger: it is in the pool, or was given up."""
        number = self._open.pop(group_id, None)
        self._chosen.pop(-1 if number is None else number, None)

    def observe(self, report: GroupReport) -> None:
        """Take a group off the ledger, and what came of it into the curriculum; a failed one teaches nothing."""
        chosen = self._chosen.get(self._open.get(report.group_id, -1))
        self.finished(report.group_id)
        if chosen is None or not report.own:
            return
        task_id, fresh = chosen
        task = self._source.get(task_id)
        by_return = self._config.advantage.zero_variance == "return"
        results = {episode.total_reward if by_return else episode.outcome for episode in report.episodes}
        success = fmean(episode.outcome for episode in report.own)
        self._curricula[task.family].observe(task, success=success, varied=len(results) > 1, fresh=fresh)

    def metrics(self) -> dict[str, float]:
        """State of the curriculum, in a mix that of each family; empty without one."""
        found = {family: curriculum.metrics() for family, curriculum in self._curricula.items()}
        if len(found) < 2:
            return next(iter(found.values()), {})
        return {_of_family(name, family): value for family, values in found.items() for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        """The next number, those that are handed out or to be played again, and what the curriculum knows and chose."""
        state: dict[str, Any] = {"next": self._next, "open": sorted([*self._open.values(), *self._again])}
        if self._curricula:
            state["curriculum"] = {family: curriculum.state_dict() for family, curriculum in self._curricula.items()}
            state["chosen"] = {str(number): list(chosen) for number, chosen in self._chosen.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another session's stream was; what it had handed out comes first. A curriculum that only the saved or
        only this run has begins anew."""
        self._next, self._again, self._open = state["next"], deque(state["open"]), {}
        self._chosen = {int(number): (task_id, fresh) for number, (task_id, fresh) in state.get("chosen", {}).items()}
        for family, saved in state.get("curriculum", {}).items():
            if family in self._curricula:
                self._curricula[family].load_state_dict(saved)

    def skip_pushed(self, pushed: Callable[[Sequence[str]], Sequence[bool]]) -> int:
        """Leave out the groups that reached the pool after the state was taken; returns how many.

        Args:
            pushed: for each group id whether the pool has ever taken it.
        """
        first, known = self._next, [False]
        beyond: list[int] = []
        while not beyond or any(known):
            chunk = range(first + len(beyond), first + len(beyond) + _SCAN)
            known = list(pushed([self._group_id(number) for number in chunk]))
            beyond += [number if not taken else -1 for number, taken in zip(chunk, known, strict=True)]
        last = max((place for place, number in enumerate(beyond) if number < 0), default=-1)
        again = pushed([self._group_id(number) for number in self._again]) if self._again else []
        open_again = [number for number, taken in zip(self._again, again, strict=True) if not taken]
        skipped = len(self._again) - len(open_again) + beyond.count(-1)
        self._again = deque([*open_again, *(number for number in beyond[: last + 1] if number >= 0)])
        self._next = first + last + 1
        return skipped

    def _group_id(self, number: int) -> str:
        return f"{self.prefix}-{number:08d}"


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
