"""Demonstrations: token sequences to imitate, as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cacherl.trajectory import Trajectory
from learner.batch import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """D demonstrations of N tokens in all.

    Flat arrays rather than objects, so that they travel between processes without a copy per trajectory.

    Attributes:
        token_ids: int32 [N], one demonstration after another.
        loss_mask: bool [N], true on the tokens to imitate.
        offsets: int64 [D + 1]; demonstration i is ``token_ids[offsets[i]:offsets[i + 1]]``.
    """

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.loss_mask) or len(self.token_ids) != self.offsets[-1]:
            raise ValueError(
                f"demonstrations: token_ids has {len(self.token_ids)} entries, loss_mask {len(self.loss_mask)}, "
                f"offsets end at {self.offsets[-1]}"
            )

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Demonstrations:
        """Flatten trajectories.

        Raises:
            ValueError: none given.
        """
        if not trajectories:
            raise ValueError("demonstrations: no trajectory given")
        return cls(
            token_ids=np.concatenate([trajectory.token_ids for trajectory in trajectories]),
            loss_mask=np.concatenate([trajectory.loss_mask for trajectory in trajectories]),
            offsets=np.cumsum([0, *map(len, trajectories)], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Row:
        """Demonstration `index` as a row without behaviour log-probabilities."""
        part = slice(self.offsets[index], self.offsets[index + 1])
        positions = np.flatnonzero(self.loss_mask[part])
        nothing = np.zeros(len(positions), dtype=np.float32)
        return Row(
            token_ids=self.token_ids[part],
            positions=positions,
            rollout_logprobs=nothing,
            advantages=nothing,
            policy_versions=np.full(len(positions), -1, dtype=np.int32),
        )
