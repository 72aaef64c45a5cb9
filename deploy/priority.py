"""The priority of a fresh group, decided where it is collected: the size of its advantages, frozen from then on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cacherl.config import AdvantageSection
from cacherl.trajectory import TrajectoryGroup
from learner.advantages import group_advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantagePriority:
    """Mean |advantage| over the group; 0, 'never sample it', when its members do not differ.

    By default the raw outcome decides and not the shaped return, whose small differences would make a gradient out of
    nothing.
    """

    settings: AdvantageSection

    def __call__(self, group: TrajectoryGroup) -> float:
        settings = self.settings
        if np.ptp(group.outcomes if settings.zero_variance == "outcome" else group.returns) == 0:
            return 0.0
        advantages = group_advantages(group.returns, normalize_std=settings.normalize_std, epsilon=settings.epsilon)
        return float(np.abs(advantages).mean())
