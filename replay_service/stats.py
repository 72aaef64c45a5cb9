"""Counters of a pool as one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStats:
    """A pool at one moment. Counters run since the pool was created.

    Attributes:
        groups, trajectories, tokens, bytes: in the pool now; bytes are payload bytes.
        eligible: groups that may be sampled now.
        never_sampled: those among them without a use.
        leases: batches that were drawn and are not acknowledged yet.
        version: the learner's.
        versions: lowest policy version of a group -> number of groups.
        inserted: trajectories accepted; successes: those with outcome 1.
        sampled: trajectories handed to learners; batches: in how many batches.
        zero_variance: groups accepted at priority 0.
        evicted, cleared, superseded, pruned: groups removed for room, by clear_every, for a newer one of their
            task, on request.
        stale_refused, stale_dropped: groups refused at the push, and dropped later, for staleness.
        retired, orphans: groups removed at max_uses; whose payload was lost.
        duplicates, expired, late: repeated pushes; leases given back; acknowledgements that came after that.
        push_waits, sample_waits: attempts that were told to wait.
        due: trajectories that must have arrived before the next batch; arrived: how many have (since the flow
            rule's start).
    """

    groups: int
    trajectories: int
    tokens: int
    bytes: int
    eligible: int
    never_sampled: int
    leases: int
    version: int
    versions: Mapping[int, int]
    inserted: int
    successes: int
    sampled: int
    batches: int
    zero_variance: int
    evicted: int
    cleared: int
    superseded: int
    pruned: int
    stale_refused: int
    stale_dropped: int
    retired: int
    orphans: int
    duplicates: int
    expired: int
    late: int
    push_waits: int
    sample_waits: int
    due: int
    arrived: int


_STORED_AS = {
    "trajectories": "traj",
    "version": "ver",
    "inserted": "ins",
    "successes": "wins",
    "batches": "draws",
}
_COMPUTED = ("eligible", "never_sampled", "leases", "due", "arrived")


def read_stats(answer: Mapping[bytes, Any]) -> ReplayStats:
    """Build the record from the answer of stats.lua."""
    counters = answer[b"counters"]

    def number(name: str) -> int:
        return int(float(counters.get(_STORED_AS.get(name, name).encode(), b"0")))

    return ReplayStats(
        **{each.name: number(each.name) for each in fields(ReplayStats) if each.name not in (*_COMPUTED, "versions")},
        **{name: int(answer[name.encode()]) for name in _COMPUTED},
        versions=dict(sorted((int(version), int(count)) for version, count in answer[b"versions"])),
    )
