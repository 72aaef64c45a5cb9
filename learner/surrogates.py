"""The objectives that a policy-gradient loss is made of, one pure function per kind.

Each takes the log of the ratio between the policy (with a graph) and the policy that the ratio divides by, and returns what
every token contributes to the objective, to be maximised, before any weight or mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cacherl.learning_settings import LossName, LossSection
from learner.batch import MAX_LOG_RATIO, MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What S tokens contribute.

    Attributes:
        values: float32 [S] with a graph.
        clipped: bool [S], where a clip took the gradient away or limited it.
    """

    values: Tensor
    clipped: Tensor


Surrogate = Callable[[Tensor, MicroBatch, LossSection], Objective]


def clipped(log_ratios: Tensor, batch: MicroBatch, settings: LossSection) -> Objective:
    """``min(r A, clip(r, 1 - low, 1 + high) A)`` per token: PPO (arXiv 1707.06347, equation 7), GRPO (arXiv 2402.03300), with
    the asymmetric range of DAPO (arXiv 2503.14476). With `dual_clip` c, at least ``c A`` where A < 0, so that a ratio that
    has run away does not decide the update (arXiv 1912.09729, equation 5)."""
    ratios = torch.exp(log_ratios.clamp(max=MAX_LOG_RATIO))
    free = ratios * batch.advantages
    bounded = torch.clamp(ratios, 1 - settings.clip_low, 1 + settings.clip_high) * batch.advantages
    values, cut = torch.minimum(free, bounded), bounded < free
    if settings.dual_clip is not None:
        floor = settings.dual_clip * batch.advantages
        below = (batch.advantages < 0) & (values < floor)
        values, cut = torch.where(below, floor, values), cut | below
    return Objective(values=values, clipped=cut.detach())


def sequence_clipped(log_ratios: Tensor, batch: MicroBatch, settings: LossSection) -> Objective:
    """`clipped` with the sequence's geometric mean ratio ``s = (prod r)^(1/length)`` in every token's place (GSPO, arXiv
    2507.18071), in the form whose gradient reaches each token by itself (GSPO-token, same paper), so that tokens may differ in
    advantage; with equal ones the gradient is the same."""
    sums = torch.zeros(len(batch.lengths), dtype=log_ratios.dtype, device=log_ratios.device)
    means = sums.index_add(0, batch.rows, log_ratios.detach()) / batch.trained_per_row.clamp(min=1)
    return clipped(means[batch.rows] + log_ratios - log_ratios.detach(), batch, settings)


def weighted_likelihood(log_ratios: Tensor, batch: MicroBatch, settings: LossSection) -> Objective:
    """``sg(clip(r, 1 - low, 1 + high)) A log pi``: every token keeps a gradient, with a bounded weight (CISPO, arXiv
    2506.13585, equation 4). The value leaves out the constant log-probability that the ratio divides by."""
    ratios = torch.exp(log_ratios.detach())
    weights = torch.clamp(ratios, 1 - settings.clip_low, 1 + settings.clip_high)
    return Objective(values=weights * batch.advantages * log_ratios, clipped=weights != ratios)


def bounded(log_ratios: Tensor, batch: MicroBatch, settings: LossSection) -> Objective:
    """``f(r) A`` with ``f(r) = r / (r + gamma)``, for tokens that the policy did not sample itself (LUFFY, arXiv 2504.14945):
    no ratio can run away, and the unlikely tokens, which are the ones to learn, keep the largest gradient."""
    # r / (r + gamma) without an overflow at either end
    values = batch.advantages * torch.sigmoid(log_ratios - math.log(settings.foreign_gamma))
    return Objective(values=values, clipped=torch.zeros_like(batch.foreign))


SURROGATES: Mapping[LossName, Surrogate] = {
    "grpo": clipped,
    "dapo": clipped,
    "dr_grpo": clipped,
    "gspo": sequence_clipped,
    "cispo": weighted_likelihood,
}


def objective(log_ratios: Tensor, batch: MicroBatch, settings: LossSection) -> Objective:
    """The configured surrogate on the policy's own tokens, `bounded` on foreign ones."""
    own = SURROGATES[settings.name](log_ratios, batch, settings)
    if not batch.foreign.any():
        return own
    other = bounded(log_ratios, batch, settings)
    return Objective(values=torch.where(batch.foreign, other.values, own.values), clipped=own.clipped & ~batch.foreign)
