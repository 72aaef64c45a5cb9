"""Components as users write them, for tests of how they are loaded."""

from __future__ import annotations

import time

from cacherl.trajectory import Trajectory
from rewards.base import Reach, Step


class Brevity:
    """1 - share of the limit that was used, at the end; and -`fine` for a turn without a call that is not the last."""

    def __init__(self, limit: int, fine: float = 0.0) -> None:
        if limit < 1:
            raise ValueError("limit must be positive")
        self.limit, self.fine = limit, fine

    def trajectory(self, trajectory: Trajectory) -> float:
        return 1 - len(trajectory.turns) / self.limit

    def turn(self, step: Step) -> float:
        return -self.fine if not step.calls else 0.0

    def reach(self, turns: int) -> Reach:
        return Reach(gain=1.0, toll=self.fine)


class Wild:
    def trajectory(self, trajectory: Trajectory) -> float:
        return 7.5 if trajectory.outcome else -7.5


def wild(step: Step) -> object:
    return {"0": float("nan"), "1": None, "2": True}[step.action]


class Nothing:
    pass


def slowly(step: Step, *, seconds: float) -> float:
    """Takes its time, so that a test can interrupt it."""
    time.sleep(seconds)
    return float(len(step.calls) > 1)
