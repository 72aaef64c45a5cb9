"""The policy-gradient loss of one micro-batch, as a share of the whole batch's.

Every loss here is a weighted sum over trained tokens, ``sum_t weight_t * loss_t``, and how tokens are averaged is a
matter of the weights alone (`token_weights`). The weights are normalised by totals of the *whole* batch, so that
summing micro-batches, and ranks, gives exactly the loss and the gradient of the batch in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cacherl.learning_settings import Aggregation, KLSection, LossSection, ValueSection
from learner.batch import MicroBatch
from learner.kl import ESTIMATES, token_factors
from learner.surrogates import objective
from learner.value import value_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the batch of one optimizer step consists of, over all micro-batches and ranks.

    Attributes:
        tokens: trained tokens.
        sequences: rows with at least one trained token.
    """

    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KLTerm:
    """The KL to the reference in a loss.

    Attributes:
        coef: its weight.
        reference: float32 [S], log-probabilities of the frozen reference.
        settings: the estimate, and what replayed tokens count.
    """

    coef: float
    reference: Tensor
    settings: KLSection


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticTerm:
    """The critic in a loss.

    Attributes:
        values: float32 [S], its estimates, with a graph.
        settings: weight and clip.
    """

    values: Tensor
    settings: ValueSection


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """A micro-batch's share of the loss and what it is made of.

    Attributes:
        loss: scalar with a graph; what `backward` is called on.
        policy: scalar, the policy-gradient part.
        value: scalar, the critic's loss (0 without one).
        kl_values: float32 [S], estimate of the KL to the reference per token (0 without one), without a graph.
        kl_factors: float32 [S], what each of them counts.
        log_ratios: float32 [S], log of policy over behaviour probability, without a graph.
        clipped: bool [S], where a clip took the gradient away or limited it.
    """

    loss: Tensor
    policy: Tensor
    value: Tensor
    kl_values: Tensor
    kl_factors: Tensor
    log_ratios: Tensor
    clipped: Tensor


def token_weights(batch: MicroBatch, totals: Totals, aggregation: Aggregation, constant_length: int = 1) -> Tensor:
    """float32 [S], the weight of each trained token in the batch's mean, replay importance weight included.

    'token': ``1 / tokens``, one mean over all trained tokens (DAPO, arXiv 2503.14476, equation 8).
    'sequence': ``1 / (sequences * length)``, the mean over rows of each row's token mean (GRPO, arXiv 2402.03300).
    'constant': ``1 / (sequences * constant_length)``, the mean over rows of sums, so that no token's weight depends on its
    row's length (Dr.GRPO, arXiv 2503.20783, section 3.2).
    """
    if aggregation == "token":
        return batch.is_weights / max(totals.tokens, 1)
    sequences = max(totals.sequences, 1)
    if aggregation == "constant":
        return batch.is_weights / (sequences * constant_length)
    return batch.is_weights / (batch.trained_per_row[batch.rows].to(torch.float32) * sequences)


def policy_loss(
    logprobs: Tensor,
    entropies: Tensor,
    batch: MicroBatch,
    totals: Totals,
    settings: LossSection,
    *,
    kl: KLTerm | None = None,
    critic: CriticTerm | None = None,
) -> LossTerms:
    """``sum_t w_t * (-c_t * objective_t + kl.coef * f_t * kl_t - entropy_coef * H_t + value.coef * value_loss_t)``.

    w are the `token_weights`, c the weights of the off-policy correction, f the factors of the KL estimates; the objective
    is the configured surrogate (`learner.surrogates`) of the ratio between the policy and `batch.proximal_logprobs`.

    Args:
        logprobs: float32 [S] of the current policy, with a graph.
        entropies: float32 [S] of the current policy.
    """
    weights = token_weights(batch, totals, settings.aggregation, settings.constant_length or 1)
    log_ratios = (logprobs - batch.rollout_logprobs).detach()
    terms = objective(logprobs - batch.proximal_logprobs, batch, settings)
    policy = -(weights * batch.correction_weights * terms.values).sum()
    loss, kl_values, kl_factors = policy, torch.zeros_like(log_ratios), torch.zeros_like(log_ratios)
    if kl is not None:
        estimates = ESTIMATES[kl.settings.estimator](logprobs, kl.reference)
        kl_values, kl_factors = estimates.detach(), token_factors(batch, log_ratios, kl.settings)
        loss = loss + kl.coef * (weights * kl_factors * estimates).sum()
    if settings.entropy_coef > 0:
        loss = loss - settings.entropy_coef * (weights * entropies).sum()
    value = torch.zeros_like(policy.detach())
    if critic is not None:
        errors = value_loss(critic.values, batch.old_values, batch.value_targets, critic.settings.clip_range)
        value = (weights * errors).sum()
        loss = loss + critic.settings.coef * value
    return LossTerms(
        loss=loss,
        policy=policy.detach(),
        value=value.detach(),
        kl_values=kl_values,
        kl_factors=kl_factors,
        log_ratios=log_ratios,
        clipped=terms.clipped,
    )


def likelihood_loss(logprobs: Tensor, totals: Totals) -> Tensor:
    """Mean negative log-likelihood over the whole batch's trained tokens: the supervised loss."""
    return -logprobs.sum() / max(totals.tokens, 1)
