"""The priority of a fresh group, decided where it is collected: the size of its advantages, frozen from then on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cacherl.learning_settings import AdvantageSection
from cacherl.trajectory import TrajectoryGroup
from learner.credit import mean_size, token_advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantagePriority:
    """Mean |advantage| over the group; 0, 'never sample it', when its members do not differ.

    By default the raw outcome decides and not the shaped return, whose small differences would make a gradient out of
    nothing.
    """

    settings: AdvantageSection

    def __call__(self, group: TrajectoryGroup) -> float:
        if np.ptp(group.outcomes if self.settings.zero_variance == "outcome" else group.returns) == 0:
            return 0.0
        return float(mean_size(token_advantages(group, self.settings)).mean())
