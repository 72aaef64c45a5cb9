"""PolicyTrainer: optimizer steps on one batch of rows, split over steps, ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacherl.config import RunConfig
from cacherl.errors import LearnerError, NotFiniteError
from cacherl.learning_settings import LossSection
from learner.batch import MicroBatch, Row
from learner.diagnostics import Diagnostics, metrics
from learner.engine import PolicyEngine
from learner.kl import KLCoefficient
from learner.loss import CriticTerm, KLTerm, Totals, policy_loss
from learner.packing import cut
from learner.schedule import learning_rate
from learner.scoring import filled_up, split_by_row

#: (log-probabilities, entropies) of a micro-batch's trained tokens under the reference policy.
Reference = Callable[[MicroBatch], tuple[Tensor, ...]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One optimizer step's part of the batch: this rank's micro-batches, and totals over all ranks."""

    batches: list[MicroBatch]
    references: list[Tensor | None]
    totals: Totals


class PolicyTrainer:
    """Trains an engine on rows with frozen advantages.

    Args:
        reference: the warm-start model, for the KL term; None when kl.coef is 0.

    Attributes:
        kl_coefficient: the weight of the KL term, which may adapt from update to update.
    """

    def __init__(self, engine: PolicyEngine, config: RunConfig, reference: Reference | None) -> None:
        self._engine = engine
        self._loss = _resolved(config)
        self._config = config
        self._settings = config.learner
        self._steps = config.optimizer_steps // config.learner.epochs
        self._reference = reference
        self.kl_coefficient = KLCoefficient(config.kl)

    def train(self, rows: Sequence[Row], version: int) -> TrainResult:
        """`learner.epochs` passes over the batch of which this rank holds `rows`, each of one or more optimizer steps.

        Args:
            version: learner version before the steps.

        Raises:
            LearnerError: no rank has a token to train on.
            NotFiniteError: the loss or its gradient is not finite; no step was taken on it.
        """
        steps = self._cut(rows)
        diagnostics = Diagnostics(version, self._engine.device)
        log_ratios = np.zeros(len(rows), dtype=np.float64)
        norms, rates, skipped = [], [], 0
        for number in range(self._settings.epochs * len(steps)):
            part = Diagnostics(version, self._engine.device)
            for index, mean in self._accumulate(steps[number % len(steps)], part, before_step=number == 0):
                log_ratios[index] = mean
            sums = self._agreed(part)
            rates.append(self._learning_rate(version, metrics(sums, part.highest, passes=1).get("learner/ess", 1.0)))
            norms.append(self._engine.step(rates[-1]))
            skipped += self._engine.skipped
            diagnostics.merge(sums, part.highest)
        values = metrics(diagnostics.sums, self._engine.maximum(diagnostics.highest), passes=len(norms))
        values |= {
            "learner/grad_norm": float(np.mean(norms)),
            "learner/lr": float(np.mean(rates)),
            "learner/skipped_steps": float(skipped),
        }
        if self._config.advantage.estimator != "gae":
            del values["learner/value_loss"]
        return TrainResult(metrics=values | self._adapt(values), log_ratios=log_ratios)

    def _cut(self, rows: Sequence[Row]) -> list[_Step]:
        """Each optimizer step's share of the rows; steps for which no rank has a token are left out."""
        steps = []
        for number in range(self._steps):
            places = list(range(number, len(rows), self._steps))
            steps.append(self._step(rows, places))
        steps = [step for step in steps if step.totals.tokens]
        if not steps:
            raise LearnerError("nothing to train on: the batch's groups were evicted or hold no sampled token")
        return steps

    def _step(self, rows: Sequence[Row], places: list[int]) -> _Step:
        chosen = [rows[place] for place in places]
        counts = [len(row.positions) for row in chosen]
        sums = torch.tensor([sum(counts), sum(count > 0 for count in counts)], device=self._engine.device)
        tokens, sequences = self._engine.add_up(sums).tolist()
        filled = filled_up(self._engine, cut(chosen, self._settings))
        original = torch.tensor([*places, 0])
        batches = [batch.renumbered(original[batch.indices]).to(self._engine.device) for batch in filled]
        references = [self._reference_logprobs(batch) for batch in batches]
        return _Step(batches=batches, references=references, totals=Totals(tokens=tokens, sequences=sequences))

    def _accumulate(self, step: _Step, diagnostics: Diagnostics, *, before_step: bool) -> list[tuple[int, float]]:
        """Forward and backward of one step's micro-batches; returns (row, its tokens' mean log-ratio)."""
        means: list[tuple[int, float]] = []
        for batch, reference in zip(step.batches, step.references, strict=True):
            logprobs, entropies, values = self._engine.evaluate(batch)
            kl = None
            if reference is not None:
                kl = KLTerm(coef=self.kl_coefficient.value, reference=reference, settings=self._config.kl)
            critic = None if values is None else CriticTerm(values=values, settings=self._config.value)
            terms = policy_loss(logprobs, entropies, batch, step.totals, self._loss, kl=kl, critic=critic)
            self._engine.backward(terms.loss)
            if len(batch.targets):
                diagnostics.add(batch, terms, logprobs.detach(), entropies.detach(), before_step=before_step)
                parts = split_by_row(batch, terms.log_ratios.double().cpu().numpy())
                means += [(index, float(part.mean()) if len(part) else 0.0) for index, part in parts]
        return means

    def _agreed(self, part: Diagnostics) -> Tensor:
        """The step's sums over all ranks; refuses them, on all ranks alike, once any rank's loss is not a number, before
        anything of it reaches the weights."""
        sums = self._engine.add_up(part.sums)
        if not torch.isfinite(sums).all():
            raise NotFiniteError("the loss is not finite; the weights are those before this step")
        return sums

    def _learning_rate(self, version: int, ess: float) -> float:
        """The scheduled rate times ``sqrt(ESS / B)``, since the variance of an importance-weighted gradient grows as 1 / ESS
        (VCPO, arXiv 2602.17616)."""
        governor = self._config.governor
        rate = learning_rate(self._config, version)
        return rate * (max(ess**0.5, governor.lr_floor) if governor.lr_by_ess else 1.0)

    def _adapt(self, values: dict[str, float]) -> dict[str, float]:
        """Metrics of the KL term, whose weight follows what was measured."""
        if self._reference is None:
            return {}
        used = self.kl_coefficient.value
        surge = "learner/kl" in values and self.kl_coefficient.observe(values["learner/kl"])
        return {"learner/kl_coef": used, "learner/kl_surge": float(surge)}

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            logprobs: Tensor = self._reference(batch)[0]
        return logprobs


def _resolved(config: RunConfig) -> LossSection:
    """The loss's settings as the run's other sections complete them."""
    changes: dict[str, float] = {"constant_length": config.loss.constant_length or config.model.max_length}
    if config.correction.method == "m2po":  # its mask takes the clip's place
        changes |= {"clip_low": 1.0, "clip_high": float("inf")}
    return config.loss.model_copy(update=changes)
