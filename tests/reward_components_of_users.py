"""Components as users write them, for tests of how they are loaded."""

from __future__ import annotations

import time

import numpy as np

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
    values = {"0": lambda: float("nan"), "1": lambda: None, "2": lambda: True, "raises": lambda: 1 / 0, "huge": lambda: 10**400}
    return values[step.action]()


def of_numpy(step: Step, *, kind: str) -> object:
    return getattr(np, kind)(float(step.action))


def without_arguments() -> float:
    return 0.0


async def later(step: Step) -> float:
    return 0.0


class Unstable:
    def __init__(self) -> None:
        raise KeyError("unknown")


class Reaching:
    """Says that it reaches whatever `what` is evaluated to."""

    def __init__(self, what: str) -> None:
        self.what = what

    def turn(self, step: Step) -> float:
        return 0.0

    def reach(self, turns: int) -> Reach:
        return eval(self.what)


class Called:
    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, step: Step) -> float:
        return self.share


class Waiting:
    blocking = True

    def turn(self, step: Step) -> float:
        return 0.0


class Meddler:
    def __init__(self, *, arrays: bool = False) -> None:
        self.arrays = arrays

    def trajectory(self, trajectory: Trajectory) -> float:
        for turn in trajectory.turns:
            for call in turn.calls:
                call.arguments["rows"].append(2)
        if self.arrays:
            trajectory.token_ids[0] = 7
        return 0.0


READY = Waiting()


class Nothing:
    pass


def slowly(step: Step, *, seconds: float) -> float:
    """Takes its time, so that a test can interrupt it."""
    time.sleep(seconds)
    return float(len(step.calls) > 1)
