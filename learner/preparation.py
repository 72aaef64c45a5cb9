"""Preparation: from sampled groups to rows, with advantages and the weights of the off-policy correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cacherl.config import RunConfig
from cacherl.trajectory import TrajectoryGroup
from learner.batch import Row, row_of
from learner.correction import correct
from learner.credit import critic_advantages, member_advantages, td_errors, token_advantages
from learner.engine import PolicyEngine
from learner.scoring import Scores, score
from replay_service.plan import PlanEntry

Sampled = tuple[PlanEntry, TrajectoryGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """This rank's share of a batch.

    Attributes:
        rows: one per member of each group, in order.
        advantages: float64 [n] aligned to `rows`, of each as a whole.
        td_errors: the critic's error in each turn, per row; empty without a critic.
    """

    rows: list[Row]
    advantages: npt.NDArray[np.float64]
    td_errors: Sequence[npt.NDArray[np.float64]] = ()


class Preparation:
    """Makes rows of groups; all ranks take part, because the current policy may have to score them first."""

    def __init__(self, engine: PolicyEngine, config: RunConfig) -> None:
        self._engine = engine
        self._config = config
        self._corrects = config.correction.method != "none" or config.correction.keep_within is not None
        self._weighted = config.advantage.baseline == "weighted"
        self._critic = config.advantage.estimator == "gae"

    def __call__(self, sampled: Sequence[Sampled]) -> Prepared:
        """Rows of the groups in order."""
        rows = [
            row_of(member, is_weight=entry.is_weight, replayed=entry.uses > 0)
            for entry, group in sampled
            for member in group.trajectories
        ]
        scores = Scores(logprobs=[], values=[])
        if self._corrects or self._weighted or self._critic:
            scores = score(self._engine, rows, self._config.learner)
        groups = [group for _, group in sampled]
        errors: list[npt.NDArray[np.float64]] = []
        if self._critic:
            errors = self._errors(groups, scores.values)
            advantages, rows = self._valued(groups, rows, scores.values)
        else:
            advantages = self._advantages(groups, rows, scores.logprobs)
        rows = [replace(row, advantages=values.astype(np.float32)) for row, values in zip(rows, advantages, strict=True)]
        if self._corrects:
            rows = correct(rows, scores.logprobs, self._config.correction, self._engine.gather)
        return Prepared(rows=rows, advantages=member_advantages(advantages), td_errors=errors)

    def _errors(
        self, groups: Sequence[TrajectoryGroup], values: Sequence[npt.NDArray[np.float32]]
    ) -> list[npt.NDArray[np.float64]]:
        members = [member for group in groups for member in group.trajectories]
        gamma = self._config.advantage.gamma
        return [td_errors(one, old.astype(np.float64), gamma) for one, old in zip(members, values, strict=True)]

    def _valued(
        self, groups: Sequence[TrajectoryGroup], rows: Sequence[Row], values: Sequence[npt.NDArray[np.float32]]
    ) -> tuple[list[npt.NDArray[np.float64]], list[Row]]:
        """Advantages by the critic, standardised over the whole batch if asked for, and rows that the critic learns from."""
        members = [member for group in groups for member in group.trajectories]
        settings = self._config.advantage
        pairs = [critic_advantages(one, old.astype(np.float64), settings) for one, old in zip(members, values, strict=True)]
        advantages = [pair[0] for pair in pairs]
        whole = self._engine.gather(np.concatenate([np.zeros(0), *advantages]))
        if settings.normalize_std and len(whole):
            advantages = [(one - whole.mean()) / (whole.std() + settings.epsilon) for one in advantages]
        taught = [
            replace(row, old_values=old, value_targets=targets.astype(np.float32))
            for row, old, (_, targets) in zip(rows, values, pairs, strict=True)
        ]
        return advantages, taught

    def _advantages(
        self, groups: Sequence[TrajectoryGroup], rows: Sequence[Row], proximal: Sequence[npt.NDArray[np.float32]]
    ) -> list[npt.NDArray[np.float64]]:
        log_ratios = None
        if self._weighted:
            log_ratios = np.array([_log_ratio(row, values) for row, values in zip(rows, proximal, strict=True)])
        advantages: list[npt.NDArray[np.float64]] = []
        for group in groups:
            part = None if log_ratios is None else log_ratios[len(advantages) : len(advantages) + len(group)]
            advantages += token_advantages(group, self._config.advantage, part)
        return advantages


def _log_ratio(row: Row, proximal: npt.NDArray[np.float32]) -> float:
    """Log of a row's sequence ratio; a foreign one has none, and counts as its own."""
    return 0.0 if row.foreign else float((proximal.astype(np.float64) - row.rollout_logprobs).sum())
