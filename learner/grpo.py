"""GrpoTrainer: optimizer steps on one batch of rows, split over ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacherl.config import RunConfig
from cacherl.errors import LearnerError
from learner.batch import MicroBatch, Row, empty_micro_batch, micro_batches
from learner.diagnostics import Diagnostics, metrics
from learner.engine import PolicyEngine
from learner.loss import Totals, policy_loss
from learner.schedule import learning_rate

#: (log-probabilities, entropies) of a micro-batch's trained tokens under the reference policy.
Reference = Callable[[MicroBatch], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What one batch did.

    Attributes:
        metrics: 'learner/*' of the whole batch, the same on every rank.
        log_ratios: float64 [n], for each of this rank's rows the mean over its trained tokens of log policy - log
            behaviour in the last pass; 0 without tokens.
    """

    metrics: dict[str, float]
    log_ratios: npt.NDArray[np.float64]


class GrpoTrainer:
    """Trains an engine on rows with frozen advantages.

    Args:
        reference: the warm-start model, for the KL term; None when kl.coef is 0.
    """

    def __init__(self, engine: PolicyEngine, config: RunConfig, reference: Reference | None) -> None:
        self._engine = engine
        self._loss = config.loss
        self._kl_coef = config.kl.coef
        self._config = config
        self._settings = config.learner
        self._reference = reference

    def train(self, rows: Sequence[Row], version: int) -> TrainResult:
        """`learner.epochs` passes over the batch of which this rank holds `rows`, one optimizer step each.

        Args:
            version: learner version before the steps.

        Raises:
            LearnerError: no rank has a token to train on, or the loss is not finite.
        """
        batches = micro_batches(rows, self._settings.micro_batch_tokens)
        totals, batches = self._agree(rows, batches)
        batches = [batch.to(self._engine.device) for batch in batches]
        references = [self._reference_logprobs(batch) for batch in batches]
        diagnostics = Diagnostics(version, self._engine.device)
        log_ratios = np.zeros(len(rows), dtype=np.float64)
        norms, rate = [], learning_rate(self._config, version)
        for epoch in range(self._settings.epochs):
            for batch, reference in zip(batches, references, strict=True):
                means = self._accumulate(batch, reference, totals, diagnostics, before_step=epoch == 0)
                log_ratios[batch.indices[: len(means)].cpu().numpy()] = means
            self._require_finite(diagnostics)
            norms.append(self._engine.step(rate))
        sums, highest = diagnostics.tensors()
        values = metrics(self._engine.add_up(sums), self._engine.maximum(highest), passes=self._settings.epochs)
        values |= {"learner/grad_norm": float(np.mean(norms)), "learner/lr": rate}
        if self._reference is None:
            del values["learner/kl"]  # nothing to measure it against
        return TrainResult(metrics=values, log_ratios=log_ratios)

    def _require_finite(self, diagnostics: Diagnostics) -> None:
        """Refuse to step, on all ranks alike, once any rank's loss is not a number: nothing of it reaches the weights."""
        sums, _ = diagnostics.tensors()
        broken = torch.tensor([float(not torch.isfinite(sums).all())], device=self._engine.device)
        if self._engine.add_up(broken).item():
            raise LearnerError("the loss is not finite; the weights are those before this step")

    def _agree(self, rows: Sequence[Row], batches: list[MicroBatch]) -> tuple[Totals, list[MicroBatch]]:
        """Totals over all ranks, and this rank's micro-batches filled up to the number that the stage needs."""
        counts = [len(row.positions) for row in rows]
        sums = torch.tensor([sum(counts), sum(count > 0 for count in counts)], device=self._engine.device)
        tokens, sequences = self._engine.add_up(sums).tolist()
        if not tokens:
            raise LearnerError("nothing to train on: the batch's groups were evicted or hold no sampled token")
        most = int(self._engine.maximum(torch.tensor([len(batches)], device=self._engine.device)))
        wanted = most if self._engine.needs_equal_counts else max(1, len(batches))
        filled = batches + [empty_micro_batch()] * (wanted - len(batches))
        return Totals(tokens=tokens, sequences=sequences), filled

    def _accumulate(
        self, batch: MicroBatch, reference: Tensor | None, totals: Totals, diagnostics: Diagnostics, *, before_step: bool
    ) -> npt.NDArray[np.float64]:
        """Forward and backward of one micro-batch; returns each row's mean log-ratio, float64 [R] (none for a filler)."""
        logprobs, entropies = self._engine.forward(batch)
        terms = policy_loss(logprobs, entropies, batch, totals, self._loss, kl_coef=self._kl_coef, reference=reference)
        self._engine.backward(terms.loss)
        if not len(batch.targets):
            return np.zeros(0)
        diagnostics.add(batch, terms, entropies, before_step=before_step)
        sums = torch.zeros(len(batch.lengths), dtype=torch.float64, device=logprobs.device)
        sums.index_add_(0, batch.rows, terms.log_ratios.double())
        means: npt.NDArray[np.float64] = (sums / batch.trained_per_row.clamp(min=1)).cpu().numpy()
        return means

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            logprobs: Tensor = self._reference(batch)[0]
        return logprobs
