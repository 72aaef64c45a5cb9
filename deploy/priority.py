"""The priority of a fresh group, decided where it is collected: the size of its advantages, frozen from then on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cacherl.trajectory import TrajectoryGroup
from learner.advantages import group_advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantagePriority:
    """Mean |advantage| over the group; 0, 'never sample it', when all members have the same raw outcome.

    The raw outcome decides and not the shaped return, whose small differences would make a gradient out of nothing.
    """

    normalize_std: bool
    epsilon: float

    def __call__(self, group: TrajectoryGroup) -> float:
        if np.ptp(group.outcomes) == 0:
            return 0.0
        advantages = group_advantages(group.returns, normalize_std=self.normalize_std, epsilon=self.epsilon)
        return float(np.abs(advantages).mean())
