"""Shaping: reward for getting closer, which leaves the best policy what it was."""

from __future__ import annotations

from dataclasses import dataclass

from cacherl.errors import ConfigError
from cacherl.reward_settings import SHAPING
from rewards.base import Reach, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """``weight * (gamma * phi(next state) - phi(state))``, phi = 0 after the end (Ng, Harada, Russell 1999).

    Its discounted sum over an episode is ``-weight * phi(first state)`` whatever the policy does, also when the episode
    was cut off. So it only says when the reward comes, which matters to an estimator with a critic and to no other.
    """

    weight: float
    gamma: float
    name: str = SHAPING

    def turn(self, step: Step) -> float:
        before, after = step.state.potential, step.next_state.potential
        if before is None or after is None:
            raise ConfigError(
                f"reward.shaping {self.weight} needs potentials, which this environment does not supply: give its simulator a "
                "`potential` method, or set reward.shaping to 0"
            )
        return self.weight * (self.gamma * after - before)

    def reach(self, turns: int) -> Reach:
        del turns
        return Reach()
