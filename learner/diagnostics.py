"""Sums of what happened in an update, and the metrics that they become once every rank has added its share."""

from __future__ import annotations

import torch
from torch import Tensor

from learner.batch import MAX_LOG_RATIO, MicroBatch
from learner.kl import k3
from learner.loss import LossTerms

_SUMS = (
    "loss", "policy", "value", "kl", "kl_tokens", "entropy", "clipped", "tokens",
    "ratio", "drift", "sampled", "weight", "weight_squared", "rows",
    "advantage", "advantage_squared", "correction", "dropped", "good", "good_logprob", "good_log_ratio",
    "mismatch", "mismatch_tokens", "real", "padded",
)  # fmt: skip


class Diagnostics:
    """Accumulates micro-batches on one rank (float64, on the micro-batches' device).

    Args:
        version: learner version before the update; tokens that it sampled itself measure the engine's mismatch.

    Attributes:
        sums: what to add up over ranks.
        highest: what to take the maximum of.
    """

    def __init__(self, version: int, device: torch.device) -> None:
        self._version = version
        self.sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self.highest = torch.zeros(1, dtype=torch.float64, device=device)

    def add(self, batch: MicroBatch, terms: LossTerms, logprobs: Tensor, entropies: Tensor, *, before_step: bool) -> None:
        """Count one micro-batch; `before_step` while the weights are still those of `version`."""
        # Ratios, their corrections and the policy's entropy say something only where a policy of ours sampled.
        sampled = ~batch.foreign
        log_ratios = torch.where(sampled, terms.log_ratios, 0.0)
        ratios = torch.exp(log_ratios.clamp(max=MAX_LOG_RATIO))
        sums = torch.zeros(len(batch.lengths), device=ratios.device).index_add_(0, batch.rows, log_ratios)
        weights = torch.exp(sums.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).double()[batch.rows[sampled].unique()]
        advantages = batch.advantages.double()
        drift = k3(torch.zeros_like(log_ratios), log_ratios)
        corrections = batch.correction_weights[sampled]
        own = (batch.policy_versions == self._version) & sampled & before_step
        good = (batch.advantages > 0) & sampled
        values = (
            terms.loss.detach(), terms.policy, terms.value, (terms.kl_values * terms.kl_factors).sum(), terms.kl_factors.sum(),
            entropies[sampled].sum(), terms.clipped.sum(), len(ratios),
            ratios[sampled].sum(), drift.sum(), sampled.sum(), weights.sum(), weights.square().sum(), len(weights),
            advantages.sum(), advantages.square().sum(), corrections.sum(), (corrections == 0).sum(),
            good.sum(), logprobs[good].sum(), log_ratios[good].sum(),
            drift[own].sum(), own.sum(), batch.num_real, batch.num_padded,
        )  # fmt: skip
        self.sums += torch.stack([torch.as_tensor(value, device=ratios.device).double() for value in values])
        if sampled.any():
            self.highest = torch.maximum(self.highest, ratios[sampled].max().double())

    def merge(self, sums: Tensor, highest: Tensor) -> None:
        """Take in the sums of another."""
        self.sums += sums
        self.highest = torch.maximum(self.highest, highest)


def metrics(sums: Tensor, highest: Tensor, *, passes: int) -> dict[str, float]:
    """Metrics 'learner/*' from the totals over all ranks of `passes` optimizer steps."""
    total = dict(zip(_SUMS, sums.tolist(), strict=True))
    tokens, sampled = (max(total[name], 1.0) for name in ("tokens", "sampled"))
    mean = total["advantage"] / tokens
    values = {
        "learner/loss": total["loss"] / passes,
        "learner/policy_loss": total["policy"] / passes,
        "learner/value_loss": total["value"] / passes,
        "learner/entropy": total["entropy"] / sampled,
        "learner/clip_fraction": total["clipped"] / sampled,
        "learner/ratio_mean": total["ratio"] / sampled,
        "learner/ratio_max": float(highest),
        "learner/drift_kl": total["drift"] / sampled,
        "learner/advantage_std": max(total["advantage_squared"] / tokens - mean**2, 0.0) ** 0.5,
        "learner/correction_weight": total["correction"] / sampled,
        "learner/dropped_tokens": total["dropped"] / sampled,
        "learner/tokens": total["real"],
        "learner/useful_tokens": total["real"] / max(total["padded"], 1.0),
    }
    # What decides something is left out where nothing was measured, because a 0 would decide too.
    if total["kl_tokens"]:
        values["learner/kl"] = total["kl"] / total["kl_tokens"]
    if total["rows"]:
        values["learner/ess"] = total["weight"] ** 2 / (total["weight_squared"] * total["rows"])
    if total["good"]:
        values["learner/good_logprob"] = total["good_logprob"] / total["good"]
        values["learner/good_log_ratio"] = total["good_log_ratio"] / total["good"]
    if total["mismatch_tokens"]:
        values["learner/mismatch_kl"] = total["mismatch"] / total["mismatch_tokens"]
    return values
