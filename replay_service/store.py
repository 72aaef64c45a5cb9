"""Replay: the client of one pool. The rules are in the Lua scripts; this moves payloads and names errors."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, cast

from redis import RedisError

from cacherl.codec import decode_group, encode_group
from cacherl.errors import CodecError, ReplayError
from cacherl.replay_settings import ReplaySettings
from cacherl.trajectory import TrajectoryGroup
from replay_service import scripts
from replay_service.connection import Connection
from replay_service.contents import GroupInfo, PoolProfile, profile, read_info
from replay_service.keys import Keys
from replay_service.open_pool import OpenPool
from replay_service.payloads import BesideIndex, Parcel, Payloads, Sharded
from replay_service.plan import AckStatus, PushError, PushResult, RescoreStatus, SamplePlan, Wait, read_plan
from replay_service.randomness import ExponentialDraws
from replay_service.stats import ReplayStats, read_stats
from replay_service.waiting import polls

_LARGEST_BATCH = 10_000
_ITERATE_CHUNK = 64


class Replay:
    """A prioritized pool of trajectory groups, shared by everybody who opens it under the same namespace.

    Safe to use from several threads. Every operation may be repeated after a lost connection and is then recognised.

    Args:
        url: redis:// or rediss:// with username, password and TLS options.
        namespace: prefix of all keys.
        settings: the pool's rules; the last opener's apply to all clients. None joins an existing pool.
        seed: of the sampling draws; None takes entropy.
        join: use the rules of an existing pool; of `settings`, only what concerns the connection and the payloads counts.

    Raises:
        ReplayError: malformed URL. Nothing is connected yet; `check` does.
        ConfigError: credentials or TLS options that cannot be used.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        settings: ReplaySettings | None = None,
        *,
        seed: int | None = None,
        join: bool = False,
    ) -> None:
        self._settings = settings or ReplaySettings()
        self._keys = Keys(namespace)
        self._index = Connection(url, self._settings)
        self._pool = OpenPool(self._index, self._keys, self._settings, join=join or settings is None)
        self._payloads: Payloads = BesideIndex(self._index, self._keys)
        if self._settings.shards:
            shards = [Connection(shard, self._settings) for shard in self._settings.shards]
            self._payloads = Sharded(self._index, shards, self._keys)
        self._draws = ExponentialDraws(seed)
        self._throttled = False

    def __repr__(self) -> str:
        return f"Replay({self._pool})"

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return self.stats().groups

    def check(self) -> None:
        """Connect, verify that the servers can hold a pool, and apply the settings.

        Raises:
            ReplayError: unreachable, refused, too old, without scripting, or set to evict keys when memory is short.
        """
        self._payloads.check()
        self._pool.open()

    def reset_flow(self) -> None:
        """Start warm-up and update_frequency afresh from what the pool holds: after a resume, no backlog is owed."""
        self._pool.script("configure", {"reset": True})

    def set_update_frequency(self, trajectories: int) -> None:
        """Ask for so many new trajectories per sample from now on, instead of the settings' update_frequency.

        Raises:
            ValueError: below 1.
        """
        if trajectories < 1:
            raise ValueError(f"update_frequency must be >= 1 to be changed, got {trajectories}")
        self._settings = replace(self._settings, update_frequency=trajectories)
        self._pool.change(self._settings)

    def try_push(self, group: TrajectoryGroup, *, priority: float) -> PushResult:
        """Store a group, all or nothing, without waiting.

        Args:
            priority: >= 0. At 0 (no gradient, as in a group of equal returns) the group is counted, not kept.

        Raises:
            ValueError: negative or non-finite priority.
            CodecError: the group cannot be encoded, or is larger than max_group_bytes.
            ReplayError: out of memory, unreachable, or larger than the whole pool may be.
        """
        return self._send([self._pack(group, _facts(group, priority))])[0]

    def try_push_many(self, groups: Sequence[TrajectoryGroup], *, priorities: Sequence[float]) -> list[PushResult]:
        """`try_push` of several groups with one round trip; each is taken or refused by itself. Results align with `groups`.

        Raises:
            PushError: some failed; it carries the results of the others.
        """
        pairs = zip(groups, priorities, strict=True)
        return self._send([self._pack(group, _facts(group, priority)) for group, priority in pairs])

    def push(self, group: TrajectoryGroup, *, priority: float, deadline_s: float | None = None) -> PushResult:
        """`try_push` that waits while the pool asks the actors to.

        Args:
            deadline_s: seconds; None takes the settings'.

        Raises:
            DeadlineExceeded: still asked to wait; the caller keeps the group and may push it again.
        """
        parcel = self._pack(group, _facts(group, priority))
        for poll in polls(self._index, self._settings.deadline_s if deadline_s is None else deadline_s):
            result = self._send([parcel])[0]
            if result.status != "throttle":
                return result
            poll.missing = f"the learner to catch up ({result.have} trajectories arrived, {result.need} allowed)"
        raise AssertionError("unreachable")

    def restore(self, groups: Sequence[TrajectoryGroup], *, priorities: Sequence[float]) -> list[PushResult]:
        """`try_push_many` of groups that no actor has just made: they wait for nobody and do not count as arrived."""
        pairs = zip(groups, priorities, strict=True)
        parcels = [self._pack(group, {**_facts(group, priority), "import": True}) for group, priority in pairs]
        return _push_results(parcels, self._store(parcels))

    def check_size(self, group: TrajectoryGroup) -> None:
        """Raise what a push would raise of a group that the pool cannot hold, whatever it holds now.

        Raises:
            CodecError: it cannot be encoded, or is larger than max_group_bytes.
            ReplayError: it is larger than the whole pool may be.
        """
        size = len(self._encode(group))
        trajectories, most_bytes = self._pool.room()
        if len(group) > trajectories or size > most_bytes:
            raise ReplayError(_too_large(group.group_id, len(group), size))

    def rescore(self, group: TrajectoryGroup, *, priority: float, mark: str, leased_too: bool = False) -> RescoreStatus:
        """Put a group with other rewards in the place of the one of the same id, all or nothing, with its new priority.

        Place in the order of arrival, uses and policy versions stay. 'done': it carries this mark already; 'leased': a learner
        holds it, whose acknowledgement would undo the new priority, so try again; 'dropped': at priority 0 it is removed, as a
        push would have counted and not kept it; 'gone': it was evicted.

        Args:
            mark: names the reward; a group keeps the last one.
            leased_too: also groups that are held: by a learner that is dead, whose successor will draw the batch again.

        Raises:
            ValueError: negative or non-finite priority.
        """
        _check_finite("priority", {group.group_id: priority})
        payload = self._encode(group)
        facts = {"p": float(priority), "bytes": len(payload), "mark": mark, "draw": self._draws.one()}
        facts |= {"leased_too": True} if leased_too else {}
        (answer,) = self._pool.ask(lambda: [self._payloads.replace(group.group_id, payload, facts)])
        status: RescoreStatus = answer[b"status"].decode()
        return status

    def marked(self, mark: str) -> set[str]:
        """Ids of the groups that were last re-scored under `mark`."""
        self._pool.open()
        found: set[str] = set()
        cursor: int | None = None
        while cursor != 0:
            cursor, part = self._index.run(lambda client, at=cursor or 0: client.hscan(self._keys.marks, at, count=500))  # type: ignore[misc]
            found |= {scripts.text(group_id) for group_id, value in part.items() if value == mark.encode()}
        return found

    def try_sample(self, batch_id: str, groups: int) -> SamplePlan | Wait:
        """Draw a batch of distinct groups under a lease, or say what is missing.

        Args:
            batch_id: who asks again with the same id, on whatever rank, gets the same batch.
            groups: how many, 1 to 10 000.

        Raises:
            ValueError: groups out of range.
            ReplayError: the service failed.
        """
        if not 1 <= groups <= _LARGEST_BATCH:
            raise ValueError(f"groups must lie in 1..{_LARGEST_BATCH}, got {groups}")
        answer = self._pool.script("sample", {"batch": batch_id, "k": groups, "draws": self._draws.packed(groups)})
        if answer[b"status"] == b"wait":
            return Wait(reason=answer[b"reason"].decode(), have=int(answer[b"have"]), need=int(answer[b"need"]))
        repeated = answer[b"status"] == b"again"
        return read_plan(batch_id, scripts.unpack(answer[b"plan"]), self._settings, repeated=repeated)

    def sample(self, batch_id: str, groups: int, *, deadline_s: float | None = None) -> SamplePlan:
        """`try_sample` that waits.

        Raises:
            DeadlineExceeded: no batch within `deadline_s` seconds (None: the settings'); says what was missing.
        """
        for poll in polls(self._index, self._settings.deadline_s if deadline_s is None else deadline_s):
            plan = self.try_sample(batch_id, groups)
            if isinstance(plan, SamplePlan):
                return plan
            poll.missing = str(plan)
        raise AssertionError("unreachable")

    def fetch(self, group_ids: Sequence[str]) -> list[TrajectoryGroup | None]:
        """Read groups, aligned to `group_ids`; None for one that is no longer there.

        Raises:
            CodecError: a payload is not a valid group.
            ReplayError: the service failed.
        """
        limit = self._settings.max_group_bytes
        payloads = self._payloads.read(group_ids)
        missing = [group_id for group_id, payload in zip(group_ids, payloads, strict=True) if payload is None]
        if missing:
            self._pool.script("forget", {"gids": missing, "sure": bool(self._settings.shards)})
        return [None if payload is None else decode_group(payload, max_bytes=limit) for payload in payloads]

    def pushed(self, group_ids: Sequence[str]) -> list[bool]:
        """For each group whether the pool has taken it, kept or not; it remembers twice as many as its capacity."""
        self._pool.open()
        if not group_ids:
            return []
        members: list[Any] = [scripts.raw(group_id) for group_id in group_ids]
        scores = self._index.run(lambda client: client.zmscore(self._keys.recent, members))
        return [score is not None for score in scores]

    def get(self, group_id: str) -> TrajectoryGroup | None:
        """One group, or None."""
        return self.fetch([group_id])[0]

    def ack(
        self,
        batch_id: str,
        *,
        rank: int = 0,
        world: int = 1,
        priorities: Mapping[str, float],
        divergences: Mapping[str, float] | None = None,
    ) -> AckStatus:
        """Report a batch as trained on, with new priorities of (this rank's share of) its groups.

        The lease ends once `world` ranks have acknowledged. 'dup': this rank did already; 'late': the lease had ended, the
        call is ignored. Groups that were evicted meanwhile are skipped.

        Args:
            divergences: group -> how far its policy is from the current one, >= 0, for eviction 'divergent'; a group without
                a figure counts as 0.

        Raises:
            ValueError: negative or non-finite priority or divergence.
        """
        _check_finite("priority", priorities)
        _check_finite("divergence", divergences or {})
        arguments = {
            "batch": batch_id,
            "rank": rank,
            "world": world,
            "gids": list(priorities),
            "p": _doubles(priorities.values()),
            "draws": self._draws.packed(len(priorities)),
        }
        if divergences is not None:
            arguments["div"] = _doubles(divergences.get(group_id, 0.0) for group_id in priorities)
        status: AckStatus = self._pool.script("ack", arguments)[b"status"].decode()
        return status

    def reap(self, limit: int = 1000) -> int:
        """Give back leases that have ended and drop what is too stale; returns the number of leases. Sampling does it too."""
        ended = int(self._pool.script("reap", {"limit": limit})[b"leases"])
        self._payloads.collect()
        return ended

    def set_version(self, version: int, *, drop_newer: bool = False) -> int:
        """Tell the pool the learner's version; returns how many groups were dropped, as too stale or as newer.

        Args:
            drop_newer: drop the groups with a token of a later version, which only another run can have left under this
                namespace; they would count as fresher than anything that this run makes. For the start of a run.
        """
        answer = self._pool.script("version", {"version": version, "drop_newer": drop_newer})
        self._payloads.collect()
        return int(answer[b"stale"]) + int(answer[b"newer"])

    def stats(self) -> ReplayStats:
        """Counters of the pool, in one round trip.

        Raises:
            ReplayError: there is no such pool.
        """
        return read_stats(self._pool.script("stats", {}))

    def profile(self) -> PoolProfile:
        """Distributions over the groups; reads the whole index."""
        return profile(self.entries(), learner_version=self.stats().version, now=time.time())

    def entries(self) -> Iterator[GroupInfo]:
        """What the index knows of each group, in no order, while the pool is in use."""
        self._pool.open()
        seen: set[bytes] = set()
        cursor: int | None = None
        while cursor != 0:
            cursor, part = self._index.run(lambda client, at=cursor or 0: client.hscan(self._keys.meta, at, count=500))  # type: ignore[misc]
            for group_id, meta in part.items():
                if group_id not in seen:
                    seen.add(group_id)
                    yield read_info(group_id, meta)

    def iterate(self, group_ids: Sequence[str]) -> Iterator[TrajectoryGroup | None]:
        """`fetch` that holds only a few groups at a time."""
        for start in range(0, len(group_ids), _ITERATE_CHUNK):
            yield from self.fetch(group_ids[start : start + _ITERATE_CHUNK])

    def prune(self, group_ids: Sequence[str]) -> int:
        """Remove groups; returns how many there were. One that a learner holds stays readable for its lease."""
        removed = 0
        for start in range(0, len(group_ids), 1000):
            removed += int(self._pool.script("prune", {"gids": list(group_ids[start : start + 1000])})[b"pruned"])
        self._payloads.collect()
        return removed

    def clear(self) -> int:
        """Delete this pool, and nothing else on the server; returns the number of keys."""
        self._pool.forget()
        return self._payloads.clear()

    def close(self) -> None:
        """Release the connections and end waits of other threads; idempotent."""
        self._payloads.close()

    def _encode(self, group: TrajectoryGroup) -> bytes:
        settings = self._settings
        payload = encode_group(group, compress=settings.compress, half_logprobs=settings.half_logprobs)
        if len(payload) > settings.max_group_bytes:
            raise CodecError(
                f"group {group.group_id!r} has {len(payload)} bytes, max_group_bytes is {settings.max_group_bytes}"
            )
        return payload

    def _pack(self, group: TrajectoryGroup, facts: Mapping[str, Any]) -> Parcel:
        payload = self._encode(group)
        arguments = {**facts, "bytes": len(payload), "draw": self._draws.one()}
        question = scripts.pack({**arguments, "ask": True})
        return Parcel(group.group_id, len(group), payload, scripts.pack(arguments), question)

    def _send(self, parcels: Sequence[Parcel]) -> list[PushResult]:
        """Push; while the pool asks to wait, send payloads only once it would take them."""
        answers = [self._store_if_admitted(parcel) for parcel in parcels] if self._throttled else self._store(parcels)
        return _push_results(parcels, answers)

    def _store_if_admitted(self, parcel: Parcel) -> Any:
        answer = self._pool.ask(lambda: [self._index.script("push", self._keys.state, parcel.question)])[0]
        return self._store([parcel])[0] if answer[b"status"] == b"admitted" else answer

    def _store(self, parcels: Sequence[Parcel]) -> list[Any]:
        """The answers of push.lua, aligned; an error in place of one."""
        answers = self._pool.ask(lambda: self._payloads.push(parcels)) if parcels else []
        self._throttled = any(isinstance(answer, Mapping) and answer[b"status"] == b"throttle" for answer in answers)
        return answers


def _push_results(parcels: Sequence[Parcel], answers: Sequence[Mapping[bytes, Any] | RedisError]) -> list[PushResult]:
    """Results, aligned.

    Raises:
        PushError: a group failed.
    """
    pairs = list(zip(parcels, answers, strict=True))
    failures = [_failure(parcel, answer) for parcel, answer in pairs]
    results = [None if failure else _push_result(answer) for (_, answer), failure in zip(pairs, failures, strict=True)]
    if any(failures):
        raise PushError("; ".join(filter(None, failures)), results)
    return cast(list[PushResult], results)


def _failure(parcel: Parcel, answer: Mapping[bytes, Any] | RedisError) -> str | None:
    if isinstance(answer, RedisError):
        return f"group {parcel.group_id!r} was not stored: {answer}"
    if answer[b"status"] == b"toolarge":
        return _too_large(parcel.group_id, parcel.trajectories, len(parcel.payload))
    return None


def _too_large(group_id: str, trajectories: int, size: int) -> str:
    return (
        f"group {group_id!r} of {trajectories} trajectories and {size} bytes exceeds the whole pool: "
        "raise replay.capacity or replay.capacity_bytes"
    )


def _push_result(answer: Any) -> PushResult:
    status: Any = answer[b"status"].decode()
    numbers = {name: int(answer.get(name.encode(), 0)) for name in ("evicted", "have", "need")}
    return PushResult(status=status, **numbers)


def _facts(group: TrajectoryGroup, priority: float) -> dict[str, Any]:
    _check_finite("priority", {group.group_id: priority})
    low, high = group.version_range
    return {
        "gid": group.group_id,
        "n": len(group),
        "tokens": group.num_tokens,
        "vmin": low,
        "vmax": high,
        "p": float(priority),
        "wins": int((group.outcomes >= 1).sum()),
        "task": group.task_id,
    }


def _check_finite(name: str, values: Mapping[str, float]) -> None:
    for group_id, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} of group {group_id!r} must be finite and >= 0, got {value}")


def _doubles(values: Any) -> bytes:
    listed = list(values)
    return struct.pack(f"<{len(listed)}d", *listed)
