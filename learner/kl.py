"""KL to the reference policy: estimates per token, and the weight that adapts to a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cacherl.learning_settings import KLEstimator, KLSection
from learner.batch import MAX_LOG_RATIO, MicroBatch

#: Largest ratio that a replayed token's estimate is weighted by.
MAX_RATIO = 10.0


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``d = logprobs - reference``: unbiased, of either sign; as a loss its gradient vanishes in expectation."""
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``d^2 / 2``: biased as a value, but its gradient is that of KL(policy || reference) on tokens of the policy."""
    return (logprobs - reference).square() / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Non-negative, low-variance KL estimate per token, ``exp(-d) + d - 1`` with ``d = logprobs - reference``.

    Unbiased for KL(policy || reference) on tokens that the policy sampled (Schulman, 'Approximating KL divergence'). Where the
    policy has all but given up a token (d < -`MAX_LOG_RATIO`) it stands still.
    """
    difference = (logprobs - reference).clamp(min=-MAX_LOG_RATIO)
    return torch.expm1(-difference) + difference


ESTIMATES: Mapping[KLEstimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def token_factors(batch: MicroBatch, log_ratios: Tensor, settings: KLSection) -> Tensor:
    """float32 [S] without a graph, what each token's estimate counts: 1 when fresh, as `kl.replayed` says when replayed, 0 when
    foreign.

    An estimate is unbiased only on samples of the policy itself; on those of an earlier one the ratio policy / behaviour
    (limited to `MAX_RATIO`) makes it so; on what somebody else said nothing does.

    Args:
        log_ratios: float32 [S], log of policy over behaviour probability.
    """
    own = (~batch.foreign).to(log_ratios.dtype)
    if settings.replayed == "include":
        return own
    other = torch.exp(log_ratios.detach()).clamp(max=MAX_RATIO) if settings.replayed == "weighted" else torch.zeros_like(own)
    return torch.where(batch.replayed, other * own, own)


class KLCoefficient:
    """The weight of the KL term; with `kl.target` it follows the measured KL.

    Attributes:
        value: the weight of the next update.
    """

    def __init__(self, settings: KLSection) -> None:
        self._settings = settings
        self.value = settings.coef

    def state_dict(self) -> dict[str, Any]:
        """The weight that was reached."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a weight; without a target it is the settings'."""
        if self._settings.target is not None:
            self.value = state["value"]

    def observe(self, kl: float) -> bool:
        """Adapt to an update's mean KL, in nats per token; returns whether it was a surge.

        ``beta *= 1 + rate * clip(kl / target - 1, -0.2, 0.2)`` (arXiv 1909.08593, section 2.2); a surge doubles it at once.
        """
        settings = self._settings
        if settings.target is None:
            return False
        surge = kl > settings.surge * settings.target
        error = min(max(kl / settings.target - 1, -0.2), 0.2)
        factor = 2.0 if surge else 1 + settings.rate * error
        self.value = min(max(self.value * factor, settings.coef_min), settings.coef_max)
        return surge
