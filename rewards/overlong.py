"""Overlong: a soft penalty on trajectories that come near the limit."""

from __future__ import annotations

from dataclasses import dataclass

from cacherl.trajectory import Trajectory
from rewards.base import Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """0 up to ``limit - buffer`` tokens, then linear to `penalty` (<= 0) at `limit` (DAPO, arXiv 2503.14476, equation 13).

    The length is that of the trajectory, prompt included, as the limit is.
    """

    penalty: float
    limit: int
    buffer: int
    name: str = "overlong"

    def trajectory(self, trajectory: Trajectory) -> float:
        excess = len(trajectory) - (self.limit - self.buffer)
        return self.penalty * min(max(excess / self.buffer, 0.0), 1.0)

    def reach(self, turns: int) -> Reach:
        del turns
        return Reach()  # a policy that keeps short pays nothing
