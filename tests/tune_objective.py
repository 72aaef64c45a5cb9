"""Objectives with planted best weights, for tests of `cacherl tune`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from cacherl.config import RunConfig

BEST = {"reward.tool_use": 0.12, "reward.step_penalty": -0.03}


def planted(config: RunConfig) -> float:
    """1 at the best weights, less by the squared distance in units of the search's ranges."""
    tool_use, step_penalty = config.reward.tool_use, config.reward.step_penalty
    return 1 - ((tool_use - 0.12) / 0.4) ** 2 - ((step_penalty + 0.03) / 0.1) ** 2


def climbing(config: RunConfig) -> Iterator[float]:
    """Goes up to the planted value over `run.updates` updates; refuses a weight of exactly 0.4."""
    if config.reward.tool_use == 0.4:
        raise RuntimeError("the planted fault")
    for update in range(config.run.updates):
        yield planted(config) * (update + 1) / config.run.updates


def slow(config: RunConfig) -> Iterator[float]:
    """As `climbing`, a tenth of a second an update."""
    for value in climbing(config):
        time.sleep(0.1)
        yield value
