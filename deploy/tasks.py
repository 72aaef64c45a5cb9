"""Which tasks a run plays, in which order: a function of the run's seed alone."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.rollout import GroupRequest, derive_seed
from cacherl.config import RunConfig
from envs.base import TRAIN, VAL, Task, TaskSource

#: Groups that the pool is asked for at once; more than can have been in flight between two that are known to it.
_SCAN = 4096


class TaskStream:
    """Endless stream of training groups; group n is the same whichever actor plays it.

    It keeps a ledger of the groups that were handed out and have not come back: a resumed run plays exactly those again.

    Args:
        prefix: makes group ids unique among runs that share a replay server.
    """

    def __init__(self, source: TaskSource, config: RunConfig, prefix: str) -> None:
        self._source = source
        self._config = config
        self.prefix = prefix
        self._next = 0
        self._again: deque[int] = deque()
        self._open: dict[str, int] = {}

    def __call__(self) -> GroupRequest:
        number = self._again.popleft() if self._again else self._next
        self._next = max(self._next, number + 1)
        group_id = self._group_id(number)
        self._open[group_id] = number
        distinct = self._config.env.train_tasks
        return GroupRequest(
            group_id=group_id,
            task=draw_task(self._source, self._config, split=TRAIN, number=number % distinct if distinct else number),
            size=self._config.rollout.group_size,
            seed=derive_seed(self._config.run.seed, "group", number),
        )

    def finished(self, group_id: str) -> None:
        """Take a group off the ledger: it is in the pool, or was given up."""
        self._open.pop(group_id, None)

    def state_dict(self) -> dict[str, Any]:
        """The next number and those that are handed out or to be played again."""
        return {"next": self._next, "open": sorted([*self._open.values(), *self._again])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another session's stream was; what it had handed out comes first."""
        self._next, self._again, self._open = state["next"], deque(state["open"]), {}

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


def draw_task(source: TaskSource, config: RunConfig, *, split: str, number: int) -> Task:
    """Task `number` of a split; the levels of `env.levels` alternate."""
    levels = config.env.levels
    rng = random.Random(derive_seed(config.run.seed, split, number))
    return source.sample(rng, split=split, level=levels[number % len(levels)])


def held_out_tasks(source: TaskSource, config: RunConfig) -> list[Task]:
    """The `eval.tasks` tasks of every evaluation of this run."""
    return [draw_task(source, config, split=VAL, number=number) for number in range(config.eval.tasks)]
