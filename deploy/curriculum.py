"""`Curriculum`: which level a training task is drawn from, and which tasks are played once more.

A level is raised when the rolling success of its fresh tasks passes `raise_above`, lowered below `lower_below`. Lower levels
stay in the mix (`review`), those most whose groups still differ in their results; and tasks whose last group did are played
again (`revisit`), since only such groups have a gradient.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from actors.rollout import derive_seed
from cacherl.environment_settings import CurriculumSection
from envs.base import Task

logger = logging.getLogger(__name__)

#: Weight of a lower level none of whose latest groups had variance, beside 1 for one whose groups all had.
_FLOOR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to play next. `task_id` None: a fresh task of `level`, else that task once more."""

    level: int
    task_id: str | None = None


@dataclass(slots=True)
class _Level:
    """The latest groups of fresh tasks of one level: mean outcome in [0, 1] of each, and whether its members differed."""

    window: int
    success: deque[float] = field(init=False)
    varied: deque[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.success, self.varied = deque(maxlen=self.window), deque(maxlen=self.window)

    @property
    def full(self) -> bool:
        return len(self.success) == self.window

    @property
    def variance(self) -> float:
        return fmean(self.varied) if self.varied else 1.0

    def clear(self) -> None:
        self.success.clear()
        self.varied.clear()


class Curriculum:
    """Chooses among `levels` of one family, from the lowest on. A choice follows from seed, number and what was observed.

    Args:
        levels: difficulties that the run may train on.
    """

    def __init__(self, section: CurriculumSection, levels: Sequence[int], *, family: str, seed: int) -> None:
        self._section = section
        self._levels = tuple(sorted(set(levels)))
        self._family = family
        self._seed = seed
        self._at = 0
        self._seen = {level: _Level(section.window) for level in self._levels}
        self._remembered: dict[str, int] = {}

    @property
    def level(self) -> int:
        """The level that most fresh tasks are drawn from."""
        return self._levels[self._at]

    def choose(self, number: int) -> Choice:
        """What group `number` plays. A task to be played again is forgotten until its group is observed."""
        rng = random.Random(derive_seed(self._seed, "curriculum", number))
        again = [task_id for task_id, level in self._remembered.items() if level <= self.level]
        if again and rng.random() < self._section.revisit:
            task_id = rng.choice(again)
            return Choice(level=self._remembered.pop(task_id), task_id=task_id)
        lower = self._levels[: self._at]
        if lower and rng.random() < self._section.review:
            weights = [_FLOOR + self._seen[level].variance for level in lower]
            return Choice(level=rng.choices(lower, weights)[0])
        return Choice(level=self.level)

    def observe(self, task: Task, *, success: float, varied: bool, fresh: bool) -> None:
        """Take in a finished group.

        Args:
            success: mean outcome of its members, in [0, 1].
            varied: its members differ, so that it has a gradient.
            fresh: the task was drawn, not played again; others would say too little of how hard the level is.
        """
        self._remembered.pop(task.task_id, None)
        if varied:
            self._remembered[task.task_id] = task.level
            while len(self._remembered) > self._section.remembered:
                del self._remembered[next(iter(self._remembered))]
        if fresh and task.level in self._seen:
            self._seen[task.level].success.append(success)
            self._seen[task.level].varied.append(varied)
            self._move()

    def _move(self) -> None:
        here = self._seen[self.level]
        if not here.full:
            return
        success = fmean(here.success)
        step = (success > self._section.raise_above) - (success < self._section.lower_below)
        target = min(max(self._at + step, 0), len(self._levels) - 1)
        if target != self._at:
            logger.info("%s: level %d -> %d at success %.2f", self._family, self.level, self._levels[target], success)
            self._at = target
            self._seen[self.level].clear()  # the model is another than when it was last judged here

    def metrics(self) -> dict[str, float]:
        """The present state, by metric name."""
        seen = {level: stats for level, stats in self._seen.items() if stats.success}
        return {
            "curriculum/level": float(self.level),
            "curriculum/remembered": float(len(self._remembered)),
            **{f"curriculum/success/level{level}": fmean(stats.success) for level, stats in seen.items()},
            **{f"curriculum/variance/level{level}": stats.variance for level, stats in seen.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that was observed, as plain JSON values."""
        return {
            "level": self.level,
            "remembered": dict(self._remembered),
            "success": {str(level): list(stats.success) for level, stats in self._seen.items()},
            "varied": {str(level): list(stats.varied) for level, stats in self._seen.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Levels that this run does not have are left out; the level becomes the highest that is
        not above the saved one."""
        self._at = max((index for index, level in enumerate(self._levels) if level <= state["level"]), default=0)
        self._remembered = {task_id: level for task_id, level in state["remembered"].items() if level in self._seen}
        for level, stats in self._seen.items():
            stats.clear()
            stats.success.extend(state["success"].get(str(level), ()))
            stats.varied.extend(state["varied"].get(str(level), ()))
