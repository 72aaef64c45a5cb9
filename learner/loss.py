"""The clipped policy-gradient loss of one micro-batch, as a share of the whole batch's.

Every loss here is a weighted sum over trained tokens, ``sum_t weight_t * loss_t``, and how tokens are averaged is a
matter of the weights alone (`token_weights`). The weights are normalised by totals of the *whole* batch, so that
summing micro-batches, and ranks, gives exactly the loss and the gradient of the batch in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cacherl.config import LossSection
from learner.batch import MicroBatch

Aggregation = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the whole batch consists of, over all micro-batches and ranks.

    Attributes:
        tokens: trained tokens.
        sequences: rows with at least one trained token.
    """

    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """A micro-batch's share of the loss and what it is made of.

    Attributes:
        loss: scalar with a graph; what `backward` is called on.
        policy: scalar, the clipped policy-gradient part.
        kl: scalar, weighted mean k3 to the reference (0 without one).
        log_ratios: float32 [S], log of policy over behaviour probability, without a graph.
        clipped: bool [S], where the clip took the gradient away.
    """

    loss: Tensor
    policy: Tensor
    kl: Tensor
    log_ratios: Tensor
    clipped: Tensor


def token_weights(batch: MicroBatch, totals: Totals, aggregation: Aggregation) -> Tensor:
    """float32 [S], the weight of each trained token in the batch's mean, replay importance weight included.

    'token': ``1 / tokens``, one mean over all trained tokens (DAPO, arXiv 2503.14476, equation 8).
    'sequence': ``1 / (sequences * length)``, the mean over rows of each row's token mean (GRPO, arXiv 2402.03300).
    """
    if aggregation == "token":
        return batch.is_weights / max(totals.tokens, 1)
    lengths = batch.trained_per_row[batch.rows].to(torch.float32)
    return batch.is_weights / (lengths * max(totals.sequences, 1))


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Non-negative, low-variance KL estimate per token, ``exp(-d) + d - 1`` with ``d = logprobs - reference``.

    Unbiased for KL(policy || reference) on tokens that the policy sampled (Schulman, 'Approximating KL divergence').
    """
    difference = logprobs - reference
    return torch.expm1(-difference) + difference


def policy_loss(
    logprobs: Tensor,
    entropies: Tensor,
    batch: MicroBatch,
    totals: Totals,
    settings: LossSection,
    *,
    kl_coef: float = 0.0,
    reference: Tensor | None = None,
) -> LossTerms:
    """``sum w * (-min(r A, clip(r, 1 - low, 1 + high) A) + kl_coef * k3 - entropy_coef * H)``, r = policy / behaviour.

    PPO's clipped objective (arXiv 1707.06347, equation 7) with the asymmetric range of DAPO (arXiv 2503.14476).

    Args:
        logprobs: float32 [S] of the current policy, with a graph.
        entropies: float32 [S] of the current policy.
        reference: float32 [S], log-probabilities of the frozen reference; needed when `kl_coef` > 0.

    Raises:
        ValueError: `kl_coef` > 0 without `reference`.
    """
    weights = token_weights(batch, totals, settings.aggregation)
    log_ratios = logprobs - batch.rollout_logprobs
    ratios = torch.exp(log_ratios)
    free = ratios * batch.advantages
    bounded = torch.clamp(ratios, 1 - settings.clip_low, 1 + settings.clip_high) * batch.advantages
    policy = -(weights * torch.minimum(free, bounded)).sum()
    loss, kl = policy, torch.zeros((), device=policy.device)
    if kl_coef > 0:
        if reference is None:
            raise ValueError(f"kl_coef {kl_coef} needs the reference's log-probabilities")
        kl = (weights * k3(logprobs, reference)).sum()
        loss = loss + kl_coef * kl
    if settings.entropy_coef > 0:
        loss = loss - settings.entropy_coef * (weights * entropies).sum()
    return LossTerms(
        loss=loss, policy=policy.detach(), kl=kl.detach(), log_ratios=log_ratios.detach(), clipped=(bounded < free).detach()
    )


def likelihood_loss(logprobs: Tensor, totals: Totals) -> Tensor:
    """Mean negative log-likelihood over the whole batch's trained tokens: the supervised loss."""
    return -logprobs.sum() / max(totals.tokens, 1)
