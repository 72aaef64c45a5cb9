"""Rows, shards and micro-batches: from trajectories to tensors.

::

    SampledGroup --partition--> this rank's groups --rows--> Row * n --micro_batches--> MicroBatch * m

Nothing here infers anything from a token id: what is padding follows from the lengths alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacherl.trajectory import Trajectory, TrajectoryGroup

#: Rows of one micro-batch are padded to the longest of them.
PAD_TOKEN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory of T tokens, of which S were sampled, as the learner trains on it.

    Attributes:
        token_ids: int32 [T].
        positions: int64 [S], index in `token_ids` of each trained token; never 0, because nothing predicts the first.
        rollout_logprobs: float32 [S], behaviour log-probability of each trained token.
        advantages: float32 [S].
        policy_versions: int32 [S], version of the weights that sampled the token.
        is_weight: replay importance weight of the row's group.
        temperature: of the distribution behind `rollout_logprobs`.
    """

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    rollout_logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    policy_versions: npt.NDArray[np.int32]
    is_weight: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rollout_logprobs", "advantages", "policy_versions"):
            if len(getattr(self, name)) != len(self.positions):
                raise ValueError(f"row: {name} has {len(getattr(self, name))} entries, positions {len(self.positions)}")
        if len(self.positions) and not 0 < self.positions.min() <= self.positions.max() < len(self.token_ids):
            raise ValueError(f"row: positions must lie in [1, {len(self.token_ids)}), the first token has no predecessor")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """R right-padded rows of at most L tokens with S trained tokens in all, as tensors.

    Causal attention never looks right, so right padding needs no attention mask: no real token can see a pad, and
    the pads' own outputs are read nowhere.

    Attributes:
        token_ids: int64 [R, L].
        lengths: int64 [R], real tokens of each row; the rest of the row is padding.
        predictors: int64 [S], index into the flattened [R * L] positions of the token *before* each trained one.
        targets: int64 [S], the trained tokens.
        rows: int64 [S], which of the R rows a trained token belongs to, ascending.
        inverse_temperatures, rollout_logprobs, advantages, is_weights: float32 [S].
        policy_versions: int64 [S].
        indices: int64 [R], index of each row in the sequence that the micro-batches were made of.
    """

    token_ids: Tensor
    lengths: Tensor
    predictors: Tensor
    targets: Tensor
    rows: Tensor
    inverse_temperatures: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    is_weights: Tensor
    policy_versions: Tensor
    indices: Tensor

    @property
    def num_real(self) -> int:
        """Tokens that are not padding."""
        return int(self.lengths.sum())

    @property
    def num_padded(self) -> int:
        """Tokens that the forward pass computes, padding included."""
        return len(self.token_ids) * int(self.token_ids.shape[1])

    @property
    def trained_per_row(self) -> Tensor:
        """int64 [R], number of trained tokens of each row."""
        return torch.bincount(self.rows, minlength=len(self.lengths))

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        if self.token_ids.device == device:
            return self
        return MicroBatch(**{name: getattr(self, name).to(device, non_blocking=True) for name in MicroBatch.__slots__})


def row_of(trajectory: Trajectory, advantage: float, is_weight: float = 1.0) -> Row:
    """The row of one trajectory, whose sampled tokens all share `advantage`.

    Raises:
        ValueError: the first token is marked as sampled.
    """
    positions = np.flatnonzero(trajectory.loss_mask)
    return Row(
        token_ids=trajectory.token_ids,
        positions=positions,
        rollout_logprobs=trajectory.rollout_logprobs[positions],
        advantages=np.full(len(positions), advantage, dtype=np.float32),
        policy_versions=trajectory.policy_versions[positions],
        is_weight=is_weight,
        temperature=trajectory.temperature,
    )


def rows_of(group: TrajectoryGroup, advantages: npt.NDArray[np.float64], is_weight: float) -> list[Row]:
    """One row per member of `group`, in order; `advantages` is float64 [G]."""
    pairs = zip(group.trajectories, advantages, strict=True)
    return [row_of(member, float(advantage), is_weight) for member, advantage in pairs]


def partition(costs: Sequence[int], world: int) -> list[list[int]]:
    """Split items over `world` ranks so that their costs (tokens) are balanced.

    Greedy, largest first onto the least loaded rank (LPT; at most 4/3 of the best possible maximum). A function of its
    arguments alone, so that every rank computes the same split without talking.

    Returns:
        Per rank, the ascending indices of its items; disjoint, covering all; a rank gets none if there are too few.
    """
    loads, shards = [0] * world, [[] for _ in range(world)]  # type: tuple[list[int], list[list[int]]]
    for index in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        rank = min(range(world), key=lambda candidate: (loads[candidate], candidate))
        loads[rank] += costs[index]
        shards[rank].append(index)
    return [sorted(shard) for shard in shards]


def micro_batches(rows: Sequence[Row], max_tokens: int) -> list[MicroBatch]:
    """Bucket rows of similar length into micro-batches of at most `max_tokens` tokens, padding included.

    Raises:
        ValueError: a row alone is longer than `max_tokens`.
    """
    order = sorted(range(len(rows)), key=lambda index: (len(rows[index]), index))
    if order and len(rows[order[-1]]) > max_tokens:
        raise ValueError(f"a trajectory of {len(rows[order[-1]])} tokens exceeds the micro-batch's {max_tokens}")
    buckets: list[list[int]] = []
    for index in order:
        if buckets and (len(buckets[-1]) + 1) * len(rows[index]) <= max_tokens:
            buckets[-1].append(index)
        else:
            buckets.append([index])
    return [_collate(rows, bucket) for bucket in buckets]


def empty_micro_batch() -> MicroBatch:
    """One that trains nothing: a rank out of rows runs it so that the ranks' collectives match."""
    row = Row(
        token_ids=np.zeros(2, dtype=np.int32),
        positions=np.zeros(0, dtype=np.int64),
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        advantages=np.zeros(0, dtype=np.float32),
        policy_versions=np.zeros(0, dtype=np.int32),
    )
    return _collate([row], [0])


def _collate(rows: Sequence[Row], indices: Sequence[int]) -> MicroBatch:
    chosen = [rows[index] for index in indices]
    width = max(len(row) for row in chosen)
    tokens = np.full((len(chosen), width), PAD_TOKEN, dtype=np.int64)
    for place, row in enumerate(chosen):
        tokens[place, : len(row)] = row.token_ids
    counts = [len(row.positions) for row in chosen]
    places = np.repeat(np.arange(len(chosen)), counts)
    positions = np.concatenate([row.positions for row in chosen])
    return MicroBatch(
        token_ids=torch.from_numpy(tokens),
        lengths=torch.tensor([len(row) for row in chosen]),
        predictors=torch.from_numpy(places * width + positions - 1),
        targets=torch.from_numpy(tokens[places, positions]),
        rows=torch.from_numpy(places),
        inverse_temperatures=_repeat([1.0 / row.temperature for row in chosen], counts),
        rollout_logprobs=torch.from_numpy(np.concatenate([row.rollout_logprobs for row in chosen])),
        advantages=torch.from_numpy(np.concatenate([row.advantages for row in chosen])),
        is_weights=_repeat([row.is_weight for row in chosen], counts),
        policy_versions=torch.from_numpy(np.concatenate([row.policy_versions for row in chosen]).astype(np.int64)),
        indices=torch.tensor(list(indices)),
    )


def _repeat(values: Sequence[float], counts: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), counts))
