"""Sums of what happened in an update, and the metrics that they become once every rank has added its share."""

from __future__ import annotations

import torch
from torch import Tensor

from learner.batch import MicroBatch
from learner.loss import LossTerms, k3

#: A sequence's importance weight is the product of its token ratios; its logarithm is clamped here against overflow.
MAX_LOG_WEIGHT = 20.0

_SUMS = (
    "loss", "policy", "kl", "entropy", "clipped", "ratio", "tokens",
    "weight", "weight_squared", "rows", "advantage", "advantage_squared",
    "mismatch", "mismatch_tokens", "real", "padded",
)  # fmt: skip


class Diagnostics:
    """Accumulates one update's micro-batches on one rank (float64, on the micro-batches' device).

    Args:
        version: learner version before the update; tokens that it sampled itself measure the engine's mismatch.
    """

    def __init__(self, version: int, device: torch.device) -> None:
        self._version = version
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._max_ratio = torch.zeros(1, dtype=torch.float64, device=device)

    def add(self, batch: MicroBatch, terms: LossTerms, entropies: Tensor, *, before_step: bool) -> None:
        """Count one micro-batch; `before_step` while the weights are still those of `version`."""
        ratios = torch.exp(terms.log_ratios)
        rows = len(batch.lengths)
        log_weights = torch.zeros(rows, device=ratios.device).index_add_(0, batch.rows, terms.log_ratios)
        weights = torch.exp(log_weights.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)).double()[batch.trained_per_row > 0]
        own = (batch.policy_versions == self._version) & before_step
        advantages = batch.advantages.double()
        mismatch = k3(torch.zeros_like(terms.log_ratios), terms.log_ratios)[own]
        values = (
            terms.loss.detach(), terms.policy, terms.kl, entropies.detach().sum(), terms.clipped.sum(), ratios.sum(),
            len(ratios), weights.sum(), weights.square().sum(), len(weights), advantages.sum(), advantages.square().sum(),
            mismatch.sum(), own.sum(), batch.num_real, batch.num_padded,
        )  # fmt: skip
        self._sums += torch.stack([torch.as_tensor(value, device=ratios.device).double() for value in values])
        if len(ratios):
            self._max_ratio = torch.maximum(self._max_ratio, ratios.max().double())

    def tensors(self) -> tuple[Tensor, Tensor]:
        """(what to add up over ranks, what to take the maximum of)."""
        return self._sums, self._max_ratio


def metrics(sums: Tensor, max_ratio: Tensor, *, passes: int) -> dict[str, float]:
    """Metrics 'learner/*' from the totals over all ranks of `passes` passes over the batch."""
    total = dict(zip(_SUMS, sums.tolist(), strict=True))
    tokens, rows = max(total["tokens"], 1.0), max(total["rows"], 1.0)
    mean = total["advantage"] / tokens
    values = {
        "learner/loss": total["loss"] / passes,
        "learner/policy_loss": total["policy"] / passes,
        "learner/kl": total["kl"] / passes,
        "learner/entropy": total["entropy"] / tokens,
        "learner/clip_fraction": total["clipped"] / tokens,
        "learner/ratio_mean": total["ratio"] / tokens,
        "learner/ratio_max": float(max_ratio),
        "learner/ess": total["weight"] ** 2 / max(total["weight_squared"] * rows, 1e-300),
        "learner/advantage_std": max(total["advantage_squared"] / tokens - mean**2, 0.0) ** 0.5,
        "learner/tokens": total["real"],
        "learner/useful_tokens": total["real"] / max(total["padded"], 1.0),
    }
    if total["mismatch_tokens"]:
        values["learner/mismatch_kl"] = total["mismatch"] / total["mismatch_tokens"]
    return values
