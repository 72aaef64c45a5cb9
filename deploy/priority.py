"""The priority of a fresh group, decided where it is collected."""

from __future__ import annotations

import numpy as np

from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from cacherl.learning_settings import AdvantageSection
from cacherl.trajectory import TrajectoryGroup
from learner.credit import member_advantages, token_advantages
from replay_service.priorities import Prioritizer


class FreshPriority:
    """`replay.priority` of a group as an actor pushes it; 0, 'never sample it', when its members do not differ.

    By default the raw outcome decides what differs and not the shaped return, whose small differences would make a gradient
    out of nothing. Each actor judges returns by those that it has collected itself.

    Raises:
        ConfigError: replay.priority names no function.
    """

    def __init__(self, config: RunConfig) -> None:
        self._settings: AdvantageSection = config.advantage
        try:
            self._prioritizer = Prioritizer(config.replay.priority)
        except ValueError as error:
            raise ConfigError(f"replay.priority: {error}") from None

    def __call__(self, group: TrajectoryGroup) -> float:
        settings = self._settings
        if settings.estimator == "gae":  # a critic learns from every group, and none has judged this one yet
            return self._prioritizer.fresh(np.ones(len(group)), group.returns)
        advantages = member_advantages(token_advantages(group, settings))
        priority = self._prioritizer.fresh(advantages, group.returns)
        differing = group.outcomes if settings.zero_variance == "outcome" else group.returns
        return priority if np.ptp(differing) > 0 else 0.0
