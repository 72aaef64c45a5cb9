"""The learning rate as a function of the update."""

from __future__ import annotations

import math
from collections.abc import Callable

from cacherl.config import RunConfig


def learning_rate(config: RunConfig, version: int) -> float:
    """``lr * warmup * decay`` of the update that learner version `version` makes, the first of which is version 0.

    Warm-up rises linearly over `learner.schedule.warmup` updates and reaches 1 with the last of them. Decay falls from there
    to `learner.schedule.final` at the last update of `learner.schedule.updates` (`run.updates` unless set): linearly, along
    half a cosine, or not at all. Later updates keep the final rate.
    """
    schedule = config.learner.schedule
    if version < schedule.warmup:
        return config.learner.lr * (version + 1) / schedule.warmup
    span = (schedule.updates or config.run.updates) - 1 - schedule.warmup
    progress = min((version - schedule.warmup) / span, 1.0) if span > 0 else 1.0
    return config.learner.lr * (schedule.final + (1 - schedule.final) * _REMAINING[schedule.kind](progress))


_REMAINING: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
