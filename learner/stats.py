"""What an update did, on one rank and on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learner.reward_parts import GroupParts, part_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStats:
    """One rank's account of an update.

    Attributes:
        version: learner version after it.
        metrics: 'learner/*', 'replay/staleness|uses|fresh_fraction', equal on every rank, and this rank's 'time/update'.
        group_ids: the groups that this rank trained on.
        parts: the reward of each of these groups by component.
        missing: groups of this rank that had been evicted between sampling and fetching.
    """

    version: int
    metrics: Mapping[str, float]
    group_ids: tuple[str, ...]
    parts: tuple[GroupParts, ...] = ()
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """An update of the whole learner.

    Attributes:
        version: learner version after it.
        metrics: as `RankStats.metrics`, with the slowest rank's 'time/update', and 'reward_batch/*' of the whole batch.
        group_ids: the groups that each rank trained on, by rank; disjoint.
        missing: groups that had been evicted between sampling and fetching.
    """

    version: int
    metrics: Mapping[str, float]
    group_ids: tuple[tuple[str, ...], ...]
    missing: int = 0


def merge(ranks: Sequence[RankStats], *, normalize_std: bool) -> UpdateStats:
    """The account of all ranks, in rank order; `normalize_std` as in `group_advantages`."""
    slowest = max(rank.metrics["time/update"] for rank in ranks)
    rewards = part_metrics([parts for rank in ranks for parts in rank.parts], normalize_std=normalize_std)
    return UpdateStats(
        version=ranks[0].version,
        metrics={**ranks[0].metrics, **rewards, "time/update": slowest},
        group_ids=tuple(rank.group_ids for rank in ranks),
        missing=sum(rank.missing for rank in ranks),
    )
