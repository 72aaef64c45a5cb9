"""Rows, shards and micro-batches: from trajectories to tensors.

::

    SampledGroup --partition--> this rank's groups --rows--> Row * n --micro_batches--> MicroBatch * m

Nothing here infers anything from a token id: what is padding follows from the lengths alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacherl.trajectory import Trajectory

#: Fields of a row with one entry per trained token.
_PER_TOKEN = (
    *("rollout_logprobs", "advantages", "policy_versions"),
    *("proximal_logprobs", "correction_weights", "old_values", "value_targets"),
)
#: Log-ratios count up to here, as exp(89) is no float32 and the gradient of a clipped infinity is not a number: what lies
#: beyond has the value that it has here, and no gradient.
MAX_LOG_RATIO = 20.0
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
        proximal_logprobs: float32 [S], log-probability that the loss's ratio divides by; None: `rollout_logprobs`.
        correction_weights: float32 [S], factor of each token's loss, 0 drops it; None: all 1.
        old_values, value_targets: float32 [S], the critic's estimate at the update's start, and what it should be; None
            without a critic.
        replayed: the row was trained on before.
        foreign: somebody else than the policy acted.
    """

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    rollout_logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    policy_versions: npt.NDArray[np.int32]
    is_weight: float = 1.0
    temperature: float = 1.0
    proximal_logprobs: npt.NDArray[np.float32] | None = None
    correction_weights: npt.NDArray[np.float32] | None = None
    old_values: npt.NDArray[np.float32] | None = None
    value_targets: npt.NDArray[np.float32] | None = None
    replayed: bool = False
    foreign: bool = False

    def __post_init__(self) -> None:
        for name in _PER_TOKEN:
            values = getattr(self, name)
            if values is not None and len(values) != len(self.positions):
                raise ValueError(f"row: {name} has {len(values)} entries, positions {len(self.positions)}")
        if len(self.positions) and not 0 < self.positions.min() <= self.positions.max() < len(self.token_ids):
            raise ValueError(f"row: positions must lie in [1, {len(self.token_ids)}), the first token has no predecessor")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """R rows with S trained tokens in all, as tensors of B lines of L tokens.

    Padded, a line holds one row (B = R) and needs no attention mask: causal attention never looks right, so no real token
    can see a pad, and the pads' own outputs are read nowhere. Packed, a line holds several rows, and `position_ids`, which
    begin anew with each of them, tell the model what to keep apart.

    Attributes:
        token_ids: int64 [B, L].
        position_ids: int64 [B, L] if packed; None: each line counts from 0.
        lengths: int64 [R], tokens of each row; whatever else is in the lines is padding.
        predictors: int64 [S], index into the flattened [B * L] positions of the token *before* each trained one.
        targets: int64 [S], the trained tokens.
        rows: int64 [S], which of the R rows a trained token belongs to, ascending.
        inverse_temperatures, rollout_logprobs, proximal_logprobs, advantages, is_weights, correction_weights, old_values,
            value_targets: float32 [S].
        policy_versions: int64 [S].
        replayed, foreign: bool [S].
        indices: int64 [R], index of each row in the sequence that the micro-batches were made of.
    """

    token_ids: Tensor
    position_ids: Tensor | None
    lengths: Tensor
    predictors: Tensor
    targets: Tensor
    rows: Tensor
    inverse_temperatures: Tensor
    rollout_logprobs: Tensor
    proximal_logprobs: Tensor
    advantages: Tensor
    is_weights: Tensor
    correction_weights: Tensor
    old_values: Tensor
    value_targets: Tensor
    policy_versions: Tensor
    replayed: Tensor
    foreign: Tensor
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

    def renumbered(self, indices: Tensor) -> MicroBatch:
        """The same with other `indices`."""
        return replace(self, indices=indices)

    def to(self, device: torch.device) -> MicroBatch:
        """The same on `device`."""
        if self.token_ids.device == device:
            return self
        values = {name: getattr(self, name) for name in MicroBatch.__slots__}
        return MicroBatch(
            **{name: value if value is None else value.to(device, non_blocking=True) for name, value in values.items()}
        )


def row_of(trajectory: Trajectory, advantage: float | npt.NDArray[np.float64] = 0.0, **details: Any) -> Row:
    """The row of one trajectory.

    Args:
        advantage: float64 [S], or one for all of its sampled tokens.
        details: further fields of `Row`.

    Raises:
        ValueError: the first token is marked as sampled.
    """
    positions = np.flatnonzero(trajectory.loss_mask)
    return Row(
        token_ids=trajectory.token_ids,
        positions=positions,
        rollout_logprobs=trajectory.rollout_logprobs[positions],
        advantages=np.broadcast_to(np.asarray(advantage, dtype=np.float32), len(positions)),
        policy_versions=trajectory.policy_versions[positions],
        temperature=trajectory.temperature,
        foreign=trajectory.foreign,
        **details,
    )


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


def micro_batches(rows: Sequence[Row], max_tokens: int, max_rows: int | None = None) -> list[MicroBatch]:
    """Bucket rows of similar length into micro-batches of at most `max_tokens` tokens, padding included.

    Args:
        max_rows: also at most so many rows in each; None: no limit.

    Raises:
        ValueError: a row alone is longer than `max_tokens`.
    """
    order = sorted(range(len(rows)), key=lambda index: (len(rows[index]), index))
    if order and len(rows[order[-1]]) > max_tokens:
        raise ValueError(f"a trajectory of {len(rows[order[-1]])} tokens exceeds the micro-batch's {max_tokens}")
    buckets: list[list[int]] = []
    for index in order:
        count = len(buckets[-1]) + 1 if buckets else 0
        if buckets and count * len(rows[index]) <= max_tokens and (max_rows is None or count <= max_rows):
            buckets[-1].append(index)
        else:
            buckets.append([index])
    return [collate(rows, [[index] for index in bucket]) for bucket in buckets]


def empty_micro_batch() -> MicroBatch:
    """One that trains nothing: a rank out of rows runs it so that the ranks' collectives match."""
    row = Row(
        token_ids=np.zeros(2, dtype=np.int32),
        positions=np.zeros(0, dtype=np.int64),
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        advantages=np.zeros(0, dtype=np.float32),
        policy_versions=np.zeros(0, dtype=np.int32),
    )
    return collate([row], [[0]])


def collate(rows: Sequence[Row], lines: Sequence[Sequence[int]], *, packed: bool = False) -> MicroBatch:
    """The micro-batch whose lines hold the rows of the given indices, one after another.

    Args:
        packed: say where each row begins; without it, a line must hold one row.
    """
    indices = [index for line in lines for index in line]
    chosen = [rows[index] for index in indices]
    width = max(sum(len(rows[index]) for index in line) for line in lines)
    tokens = np.full((len(lines), width), PAD_TOKEN, dtype=np.int64)
    positions = np.broadcast_to(np.arange(width), tokens.shape).copy()
    starts = []
    for number, line in enumerate(lines):
        at = 0
        for row in (rows[index] for index in line):
            starts.append(number * width + at)
            tokens[number, at : at + len(row)] = row.token_ids
            positions[number, at:] = np.arange(width - at)
            at += len(row)
        positions[number, at:] = np.arange(width - at)  # the padding is a row of its own, which nobody reads
    counts = [len(row.positions) for row in chosen]
    trained = np.repeat(np.array(starts, dtype=np.int64), counts) + np.concatenate([row.positions for row in chosen])
    return MicroBatch(
        token_ids=torch.from_numpy(tokens),
        position_ids=torch.from_numpy(positions) if packed else None,
        lengths=torch.tensor([len(row) for row in chosen]),
        predictors=torch.from_numpy(trained - 1),
        targets=torch.from_numpy(tokens.reshape(-1)[trained]),
        rows=torch.from_numpy(np.repeat(np.arange(len(chosen)), counts)),
        inverse_temperatures=_repeat([1.0 / row.temperature for row in chosen], counts, np.float32),
        rollout_logprobs=_joined([row.rollout_logprobs for row in chosen], np.float32),
        proximal_logprobs=_joined([_given(row.proximal_logprobs, row.rollout_logprobs) for row in chosen], np.float32),
        advantages=_joined([row.advantages for row in chosen], np.float32),
        is_weights=_repeat([row.is_weight for row in chosen], counts, np.float32),
        correction_weights=_joined([_given(row.correction_weights, np.ones(len(row.positions))) for row in chosen], np.float32),
        old_values=_joined([_given(row.old_values, np.zeros(len(row.positions))) for row in chosen], np.float32),
        value_targets=_joined([_given(row.value_targets, np.zeros(len(row.positions))) for row in chosen], np.float32),
        policy_versions=_joined([row.policy_versions for row in chosen], np.int64),
        replayed=_repeat([row.replayed for row in chosen], counts, np.bool_),
        foreign=_repeat([row.foreign for row in chosen], counts, np.bool_),
        indices=torch.tensor(indices),
    )


def _given(values: npt.NDArray[Any] | None, otherwise: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return otherwise if values is None else values


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(dtype))


def _repeat(values: Sequence[float], counts: Sequence[int], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.repeat(np.array(values, dtype=dtype), counts))
