"""RewardSchedule: what every weight is multiplied by at the moment, and how that follows the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cacherl.reward_settings import FINAL, SHAPING, RewardSection

_STEP_PENALTY = "step_penalty"
#: How much sooner the fast running mean forgets than the slow one that it is compared with.
_FASTER = 4


@dataclass(slots=True)
class _Trend:
    """A slow and a fast exponential mean of one series; plain means while it is shorter than their memories."""

    memory: float
    count: int = 0
    slow: float = 0.0
    fast: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.slow += (value - self.slow) * max(1 / self.count, 1 / self.memory)
        self.fast += (value - self.fast) * max(1 / self.count, min(1.0, _FASTER / self.memory))


class RewardSchedule:
    """The driver's view of the reward: it observes updates, and its `scales` go out with every group that is requested.

    Phase-in: the auxiliary parts count for nothing for `phase_in.after` updates, then grow linearly over `phase_in.over`.
    Adaptation: while the fast mean of the episodes' length is above the slow one by `length_rise`, the step penalty grows by
    `rate` an update, up to `limit`; while the fast mean of success is below the slow one by `success_drop`, it falls back
    as quickly, down to 1. The drop is looked at first.
    """

    def __init__(self, section: RewardSection) -> None:
        self._section = section
        self._weights = dict(section.weights())
        self._update = 0
        self._factor = 1.0
        self._length = _Trend(section.adaptive.memory)
        self._success = _Trend(section.adaptive.memory)

    @property
    def scales(self) -> dict[str, float]:
        """Component -> factor of its weight, where that is not 1."""
        share = self._phased_in()
        scales = {name: share for name in self._weights if name not in (FINAL, SHAPING)}
        if _STEP_PENALTY in scales:
            scales[_STEP_PENALTY] *= self._factor
        return {name: factor for name, factor in scales.items() if factor != 1.0}

    @property
    def metrics(self) -> dict[str, float]:
        """'reward_weight/<component>': its weight at the moment."""
        scales = self.scales
        return {f"reward_weight/{name}": weight * scales.get(name, 1.0) for name, weight in self._weights.items()}

    def observe(self, update: int, *, turns: float | None, success: float | None) -> None:
        """Take in an update.

        Args:
            turns: mean turns of the episodes since the last one; None without any.
            success: their mean raw outcome.
        """
        self._update = update
        if turns is None or success is None:
            return
        self._length.add(turns)
        self._success.add(success)
        settings = self._section.adaptive
        if self._success.fast < self._success.slow - settings.success_drop:
            self._factor = max(1.0, self._factor / (1 + settings.rate))
        elif self._length.fast > self._length.slow * (1 + settings.length_rise):
            self._factor = min(settings.limit, self._factor * (1 + settings.rate))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next `scales` depend on besides the settings, as JSON knows it."""
        trends = {"length": self._length, "success": self._success}
        return {
            "update": self._update,
            "factor": self._factor,
            **{name: [trend.count, trend.slow, trend.fast] for name, trend in trends.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self._update = int(state["update"])
        self._factor = min(float(state["factor"]), self._section.adaptive.limit)
        for trend, name in ((self._length, "length"), (self._success, "success")):
            count, trend.slow, trend.fast = state[name]
            trend.count = int(count)

    def _phased_in(self) -> float:
        after, over = self._section.phase_in.after, self._section.phase_in.over
        if self._update < after:
            return 0.0
        return min(1.0, (self._update - after) / over) if over else 1.0
