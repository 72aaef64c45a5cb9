"""What a pool holds, group by group, and as distributions."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from replay_service import scripts

_META = struct.Struct("<5d2i6I")
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """What the index knows of one group.

    Attributes:
        sequence: number of the push, in order of arrival.
        pushed_at: unix seconds of the server.
        divergence: from the current policy, as the learner acknowledged it last; 0 if it never did.
        version, max_version: lowest and highest policy version of its tokens.
        bytes: of the payload.
        leases: batches that hold it now.
        successes: members with outcome 1.
    """

    group_id: str
    task_id: str
    priority: float
    sequence: int
    pushed_at: float
    divergence: float
    version: int
    max_version: int
    trajectories: int
    tokens: int
    bytes: int
    uses: int
    leases: int
    successes: int


def read_info(group_id: bytes, meta: bytes) -> GroupInfo:
    """Decode one entry of the pool's meta hash; the format is FORMAT in common.lua."""
    priority, sequence, pushed_at, _, divergence, low, high, count, tokens, size, uses, leases, wins = _META.unpack_from(meta)
    return GroupInfo(
        group_id=scripts.text(group_id),
        task_id=scripts.text(meta[_META.size :]),
        priority=priority,
        sequence=int(sequence),
        pushed_at=pushed_at,
        divergence=divergence,
        version=low,
        max_version=high,
        trajectories=count,
        tokens=tokens,
        bytes=size,
        uses=uses,
        leases=leases,
        successes=wins,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProfile:
    """Distributions over the groups of a pool.

    Attributes:
        priorities, ages_s, sizes: quantile -> priority, seconds since the push, payload bytes; empty for an empty pool.
        histogram: upper edge of priority -> number of groups, ten equal bins from 0 to the highest priority.
        staleness: learner version minus lowest version -> number of groups.
        uses: earlier draws -> number of groups.
        success_share: successes over trajectories, 0 for an empty pool.
    """

    groups: int
    priorities: Mapping[float, float]
    histogram: Mapping[float, int]
    ages_s: Mapping[float, float]
    sizes: Mapping[float, float]
    staleness: Mapping[int, int]
    uses: Mapping[int, int]
    success_share: float


def profile(groups: Iterable[GroupInfo], *, learner_version: int, now: float) -> PoolProfile:
    """Summarise groups, seen from `learner_version` at unix second `now`."""
    rows = list(groups)
    trajectories = sum(row.trajectories for row in rows)
    priorities = [row.priority for row in rows]
    counts, edges = np.histogram(priorities, bins=10, range=(0, max(priorities, default=0) or 1))
    return PoolProfile(
        groups=len(rows),
        priorities=_quantiles(priorities),
        histogram=dict(zip(edges[1:].tolist(), counts.tolist(), strict=True)) if rows else {},
        ages_s=_quantiles([now - row.pushed_at for row in rows]),
        sizes=_quantiles([float(row.bytes) for row in rows]),
        staleness=_counts(learner_version - row.version for row in rows),
        uses=_counts(row.uses for row in rows),
        success_share=sum(row.successes for row in rows) / trajectories if trajectories else 0.0,
    )


def _quantiles(values: list[float]) -> dict[float, float]:
    return dict(zip(QUANTILES, np.quantile(values, QUANTILES).tolist(), strict=True)) if values else {}


def _counts(values: Iterable[int]) -> dict[int, int]:
    return dict(sorted(Counter(values).items()))
