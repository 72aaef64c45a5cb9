"""KL in the reward: every turn pays for how much likelier its tokens were under the policy that sampled them than under the
reference. The alternative to KL in the loss (`learner.kl`); `kl.placement` says which, and it is never both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from cacherl.config import RunConfig
from cacherl.reward_settings import KL
from cacherl.trajectory import Trajectory, TrajectoryGroup
from learner.batch import Row, row_of
from learner.packing import cut
from learner.scoring import split_by_row
from learner.trainer import Reference
from replay_service.plan import PlanEntry

Sampled = tuple[PlanEntry, TrajectoryGroup]


def with_kl(trajectory: Trajectory, reference: npt.NDArray[np.float32], coef: float) -> Trajectory:
    """The trajectory with the part 'kl' in each turn: ``-coef * sum_t (log mu_t - log ref_t)`` over its sampled tokens.

    mu is the policy that sampled them, so this is the k1 estimate of KL(mu || ref), unbiased on these very tokens, and a
    part of the reward like any other: fixed by the trajectory, however often it is replayed (InstructGPT, arXiv 2203.02155,
    equation 2). What somebody else said has no KL of the policy's and pays nothing.

    Args:
        reference: float32 [S], log-probability of each sampled token under the reference, at the trajectory's temperature.
    """
    excess = trajectory.rollout_logprobs[trajectory.loss_mask].astype(np.float64) - reference
    cuts = np.cumsum([stop - start for start, stop in (turn.completion for turn in trajectory.turns)])[:-1]
    scale = 0.0 if trajectory.foreign else -coef
    turns = (
        replace(turn, rewards={**turn.rewards, KL: scale * float(part.sum())})
        for turn, part in zip(trajectory.turns, np.split(excess, cuts), strict=True)
    )
    return replace(trajectory, turns=tuple(turns)) if trajectory.turns else trajectory


class KLReward:
    """Adds the part to groups before their advantages are made; each rank for its own groups.

    Args:
        reference: the warm-start model.
        device: where it is.
    """

    def __init__(self, reference: Reference, config: RunConfig, device: torch.device) -> None:
        self._reference = reference
        self._settings = config.learner
        self._coef = config.kl.coef
        self._device = device

    def __call__(self, sampled: Sequence[Sampled]) -> list[Sampled]:
        """The same groups, their members' rewards with the KL part."""
        scores = iter(self._scores([row_of(member) for _, group in sampled for member in group.trajectories]))
        return [
            (
                entry,
                replace(
                    group,
                    trajectories=tuple(
                        with_kl(member, values, self._coef) for member, values in zip(group.trajectories, scores, strict=False)
                    ),
                ),
            )
            for entry, group in sampled
        ]

    def _scores(self, rows: Sequence[Row]) -> list[npt.NDArray[np.float32]]:
        scores: list[npt.NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(rows)
        for batch in cut(rows, self._settings):
            with torch.no_grad():
                logprobs, _ = self._reference(batch.to(self._device))
            if len(batch.targets):
                for index, part in split_by_row(batch, logprobs.float().cpu().numpy()):
                    scores[index] = part
        return scores
