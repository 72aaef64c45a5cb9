"""ReplayGovernor: how often a trajectory is trained on follows how far the pool is from the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cacherl.learning_settings import GovernorSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the governor decided after an update.

    Attributes:
        change: 1 to replay more, -1 to replay less, 0 to go on.
        replay_ratio: trained per inserted trajectories from now on.
        update_frequency: new trajectories per update that give this ratio.
    """

    change: int
    replay_ratio: float
    update_frequency: int

    @property
    def metrics(self) -> dict[str, float]:
        """'governor/*'."""
        return {
            "governor/change": float(self.change),
            "governor/replay_ratio": self.replay_ratio,
            "governor/update_frequency": float(self.update_frequency),
        }


class ReplayGovernor:
    """Replays less while the effective sample size is low or the KL to the sampling policies high, and more while the
    sample size is high and that KL low; between the two it changes nothing, so that it does not swing.

    Args:
        settings: bounds and thresholds; replay_ratio must be set.
        batch_size: trajectories per update.
        update_frequency: new trajectories per update to begin with.
    """

    def __init__(self, settings: GovernorSection, *, batch_size: int, update_frequency: int) -> None:
        if settings.replay_ratio is None:
            raise ValueError("governor.replay_ratio must be set for a governor")
        self._settings = settings
        self._bounds = settings.replay_ratio
        self._batch_size = batch_size
        self._ratio = batch_size / update_frequency

    def observe(self, metrics: Mapping[str, float]) -> Decision:
        """Judge an update by its 'learner/ess' and 'learner/drift_kl'; one without the former had no row of the policy's."""
        change = self._direction(metrics["learner/ess"], metrics["learner/drift_kl"]) if "learner/ess" in metrics else 0
        low, high = self._bounds
        before, self._ratio = self._ratio, min(max(self._ratio * self._settings.factor**change, low), high)
        return Decision(
            change=change if self._ratio != before else 0,
            replay_ratio=self._ratio,
            update_frequency=self.update_frequency,
        )

    @property
    def update_frequency(self) -> int:
        """New trajectories per update that give the ratio, as nearly as whole ones within the bounds can."""
        low, high = self._bounds
        fewest = math.ceil(self._batch_size / high)
        return int(min(max(round(self._batch_size / self._ratio), fewest), self._batch_size / low))

    def state_dict(self) -> dict[str, Any]:
        """The ratio that was reached."""
        return {"ratio": self._ratio}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ratio, within the bounds."""
        low, high = self._bounds
        self._ratio = min(max(state["ratio"], low), high)

    def _direction(self, ess: float, kl: float) -> int:
        settings = self._settings
        if ess < settings.ess[0] or kl > settings.kl[1]:
            return -1
        return 1 if ess > settings.ess[1] and kl < settings.kl[0] else 0
