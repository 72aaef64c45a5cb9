"""GradientGuard: which gradients are safe to step on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Steps before the mean norm is trusted, and the weight of the latest norm in it.
_SETTLE_STEPS = 10
_LATEST = 0.1


class GradientGuard:
    """Refuses a gradient that is not finite, and one whose norm is a multiple of the recent mean.

    Args:
        spike: that multiple; None: no limit.
    """

    def __init__(self, spike: float | None) -> None:
        self._spike = spike
        self.reset()

    def allows(self, norm: float) -> bool:
        """Whether to step on a gradient of this norm; asking changes nothing."""
        if not math.isfinite(norm):
            return False
        settled = self._spike is not None and self._steps >= _SETTLE_STEPS
        return not settled or norm <= self._spike * self._mean

    def record(self, norm: float) -> None:
        """Take a norm into the mean. A refused one counts as the largest allowed, so that a lasting rise is followed; one of 0
        does not, because no gradient is small enough beside it."""
        if norm == 0:
            return
        seen = norm if self.allows(norm) else (self._spike or 1.0) * self._mean
        weight = max(_LATEST, 1 / (self._steps + 1))
        self._mean += weight * (seen - self._mean)
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The norms so far."""
        return {"mean": self._mean, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from norms of an earlier session."""
        self._mean, self._steps = state["mean"], state["steps"]

    def reset(self) -> None:
        """Forget all norms."""
        self._mean = 0.0
        self._steps = 0
