"""Counters of a pool as one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import redis

from replay_service.configuration import flow_of
from replay_service.connection import Connection
from replay_service.keys import Keys


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
    "trajectories": b"traj",
    "version": b"ver",
    "inserted": b"ins",
    "successes": b"wins",
    "batches": b"draws",
}
_COMPUTED = ("eligible", "never_sampled", "leases", "versions", "due", "arrived")


def fetch_stats(index: Connection, keys: Keys) -> ReplayStats | None:
    """Read the record in one round trip; None when there is no such pool."""

    def read(client: redis.Redis) -> list[Any]:
        with client.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.state)
            pipe.hgetall(keys.versions)
            for name in (keys.never_sampled, keys.sampled, keys.leases):
                pipe.zcard(name)
            return list(pipe.execute())

    state, versions, fresh, used, leases = index.run(read)
    return _build(state, versions, fresh, used, leases) if b"cfg" in state else None


def _build(state: Mapping[bytes, bytes], versions: Mapping[bytes, bytes], fresh: int, used: int, leases: int) -> ReplayStats:

    def number(name: str | bytes) -> int:
        return int(float(state.get(name.encode() if isinstance(name, str) else name, b"0")))

    plain = {f.name: number(_STORED_AS.get(f.name, f.name)) for f in fields(ReplayStats) if f.name not in _COMPUTED}
    warmup, frequency = flow_of(state[b"cfg"])
    return ReplayStats(
        **plain,
        eligible=fresh + used,
        never_sampled=fresh,
        leases=leases,
        versions={int(version): int(count) for version, count in sorted(versions.items(), key=lambda pair: int(pair[0]))},
        due=warmup + (number("draws") - number("draws0")) * frequency,
        arrived=number("ins") - number("ins0"),
    )
