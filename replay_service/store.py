"""Replay: the client of one pool. The rules are in the Lua scripts; this moves payloads and names errors."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import redis
from redis.exceptions import NoScriptError

from cacherl.codec import decode_group, encode_group
from cacherl.errors import ReplayError
from cacherl.replay_settings import ReplaySettings
from cacherl.trajectory import TrajectoryGroup
from replay_service import configuration, scripts
from replay_service.connection import Connection
from replay_service.health import check_server
from replay_service.keys import Keys
from replay_service.plan import AckStatus, PushResult, SamplePlan, Wait, read_plan
from replay_service.randomness import ExponentialDraws
from replay_service.stats import ReplayStats, read_stats
from replay_service.waiting import polls

logger = logging.getLogger(__name__)

#: Payloads read with one command: enough to keep the wire busy, few enough that one reader does not stall the others.
_FETCH_CHUNK = 32
#: A payload that was set but not indexed disappears after this; acceptance removes the expiry.
_UNCLAIMED_MS = 60_000


class Replay:
    """A prioritized pool of trajectory groups, shared by everybody who opens it under the same namespace.

    Safe to use from several threads. Every operation may be repeated after a lost connection and is then recognised.

    Args:
        url: redis:// or rediss:// with username, password and TLS options.
        namespace: prefix of all keys.
        settings: the pool's rules; the last opener's apply to all clients. None joins an existing pool with its own rules.
        seed: of the sampling draws; None takes entropy.

    Raises:
        ReplayError: malformed URL. Nothing is connected yet; `check` does.
    """

    def __init__(self, url: str, namespace: str, settings: ReplaySettings | None = None, *, seed: int | None = None) -> None:
        self._settings = settings or ReplaySettings()
        self._configures = settings is not None
        self._configured = False
        self._keys = Keys(namespace)
        self._connection = Connection(url, reconnect_s=self._settings.reconnect_s)
        self._draws = ExponentialDraws(seed)

    def __repr__(self) -> str:
        return f"Replay({self._connection.where}, {self._keys.namespace!r})"

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def check(self) -> None:
        """Connect, verify that the server can hold a pool, and apply the settings.

        Raises:
            ReplayError: unreachable, refused, too old, without scripting, or set to evict keys when memory is short.
        """
        self._connection.run(check_server)
        self._configure()

    def reset_flow(self) -> None:
        """Start warm-up and update_frequency afresh from what the pool holds: after a resume, no backlog is owed."""
        self._configure(reset=True)

    def try_push(self, group: TrajectoryGroup, *, priority: float) -> PushResult:
        """Store a group, all or nothing, without waiting.

        Args:
            priority: >= 0. At 0 (no gradient, as in a group of equal returns) the group is counted, not kept.

        Raises:
            ValueError: negative or non-finite priority.
            CodecError: the group cannot be encoded.
            ReplayError: out of memory, unreachable, or larger than the whole pool may be.
        """
        return self._send(group.group_id, self._encode(group), self._describe(group, priority))

    def push(self, group: TrajectoryGroup, *, priority: float, deadline_s: float | None = None) -> PushResult:
        """`try_push` that waits while the pool asks the actors to.

        Args:
            deadline_s: seconds; None takes the settings'.

        Raises:
            DeadlineExceeded: still asked to wait; the caller keeps the group and may push it again.
        """
        payload, facts = self._encode(group), self._describe(group, priority)
        for poll in polls(self._connection, self._settings.deadline_s if deadline_s is None else deadline_s):
            result = self._send(group.group_id, payload, facts)
            if result.status != "throttle":
                return result
            poll.missing = f"the learner to catch up ({result.have} trajectories arrived, {result.need} allowed)"
        raise AssertionError("unreachable")

    def try_sample(self, batch_id: str, groups: int) -> SamplePlan | Wait:
        """Draw a batch of distinct groups under a lease, or say what is missing.

        Args:
            batch_id: who asks again with the same id, on whatever rank, gets the same batch.
            groups: how many, >= 1.

        Raises:
            ValueError: groups < 1.
            ReplayError: the service failed.
        """
        if groups < 1:
            raise ValueError(f"groups must be >= 1, got {groups}")
        answer = self._script("sample", {"batch": batch_id, "k": groups, "draws": self._draws.packed(groups)})
        if answer[b"status"] == b"wait":
            return Wait(reason=answer[b"reason"].decode(), have=int(answer[b"have"]), need=int(answer[b"need"]))
        beta = self._settings.importance_beta if self._settings.importance_sampling else 0.0
        return read_plan(batch_id, scripts.unpack(answer[b"plan"]), beta=beta, repeated=answer[b"status"] == b"again")

    def sample(self, batch_id: str, groups: int, *, deadline_s: float | None = None) -> SamplePlan:
        """`try_sample` that waits.

        Raises:
            DeadlineExceeded: no batch within `deadline_s` seconds (None: the settings'); says what was missing.
        """
        for poll in polls(self._connection, self._settings.deadline_s if deadline_s is None else deadline_s):
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
        groups: list[TrajectoryGroup | None] = []
        for start in range(0, len(group_ids), _FETCH_CHUNK):
            keys = [self._keys.payload(gid) for gid in group_ids[start : start + _FETCH_CHUNK]]
            payloads: list[bytes | None] = self._connection.run(lambda client, keys=keys: client.mget(keys))  # type: ignore[misc]
            groups.extend(None if payload is None else decode_group(payload) for payload in payloads)
        missing = [gid for gid, group in zip(group_ids, groups, strict=True) if group is None]
        if missing:
            self._script("forget", {"gids": missing})
        return groups

    def ack(self, batch_id: str, *, rank: int = 0, world: int = 1, priorities: Mapping[str, float]) -> AckStatus:
        """Report a batch as trained on, with new priorities of (this rank's share of) its groups.

        The lease ends once `world` ranks have acknowledged. 'dup': this rank did already; 'late': the lease had ended, the
        call is ignored. Groups that were evicted meanwhile are skipped.

        Raises:
            ValueError: negative or non-finite priority.
        """
        for gid, priority in priorities.items():
            _check_priority(gid, priority)
        values = struct.pack(f"<{len(priorities)}d", *priorities.values())
        answer = self._script(
            "ack",
            {
                "batch": batch_id,
                "rank": rank,
                "world": world,
                "gids": list(priorities),
                "p": values,
                "draws": self._draws.packed(len(priorities)),
            },
        )
        status: AckStatus = answer[b"status"].decode()
        return status

    def reap(self, limit: int = 1000) -> int:
        """Give back leases that have ended and drop what is too stale; returns the number of leases. Sampling does it too."""
        return int(self._script("reap", {"limit": limit})[b"leases"])

    def set_version(self, version: int) -> int:
        """Tell the pool the learner's version; returns how many groups became too stale and were dropped."""
        return int(self._script("version", {"version": version})[b"stale"])

    def stats(self) -> ReplayStats:
        """Counters of the pool.

        Raises:
            ReplayError: there is no such pool.
        """
        keys = self._keys

        def read(client: redis.Redis) -> list[Any]:
            with client.pipeline(transaction=True) as pipe:
                pipe.hgetall(keys.state)
                pipe.hgetall(keys.versions)
                for index in (keys.never_sampled, keys.sampled, keys.leases):
                    pipe.zcard(index)
                return list(pipe.execute())

        state, versions, fresh, used, leases = self._connection.run(read)
        if b"cfg" not in state:
            self._configure()
            return self.stats()
        return read_stats(state, versions, fresh, used, leases, configuration.flow_of(state[b"cfg"]))

    def clear(self) -> int:
        """Delete this pool, and nothing else on the server; returns the number of keys."""

        def delete(client: redis.Redis) -> int:
            return sum(int(client.unlink(*batch)) for batch in _batches(client, self._keys.everything))

        self._configured = False
        return self._connection.run(delete)

    def close(self) -> None:
        """Release the connection and end waits of other threads; idempotent."""
        self._connection.close()

    def _encode(self, group: TrajectoryGroup) -> bytes:
        return encode_group(group)

    def _describe(self, group: TrajectoryGroup, priority: float) -> dict[str, Any]:
        _check_priority(group.group_id, priority)
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

    def _send(self, group_id: str, payload: bytes, facts: Mapping[str, Any]) -> PushResult:
        packed = scripts.pack({**facts, "bytes": len(payload), "draw": self._draws.one()})
        key = self._keys.payload(group_id)
        answer = self._configured_answer(lambda: self._connection.run(lambda client: self._write(client, key, payload, packed)))
        status = answer[b"status"].decode()
        if status == "toolarge":
            raise ReplayError(
                f"group {group_id!r} has {answer[b'have']} trajectories, more than the pool's {answer[b'need']}: "
                "raise replay.capacity"
            )
        return PushResult(
            status=status,
            evicted=int(answer.get(b"evicted", 0)),
            have=int(answer.get(b"have", 0)),
            need=int(answer.get(b"need", 0)),
        )

    def _write(self, client: redis.Redis, key: str, payload: bytes, packed: bytes) -> Any:
        script = scripts.load("push")
        with client.pipeline(transaction=True) as pipe:
            pipe.set(key, payload, nx=True, px=_UNCLAIMED_MS)
            pipe.evalsha(script.sha, 1, self._keys.state, packed)
            try:
                return scripts.unpack(pipe.execute()[1])
            except NoScriptError:
                client.script_load(script.source)
                raise redis.ConnectionError("the server had forgotten the scripts") from None

    def _script(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self._configured_answer(lambda: self._connection.script(name, self._keys.state, arguments))

    def _configured_answer(self, ask: Any) -> Any:
        """The answer of `ask`, with the settings applied first, and again should the server have lost them."""
        if not self._configured and self._configures:
            self._configure()
        answer = ask()
        if answer[b"status"] != b"unconfigured":
            return answer
        self._configure()
        return ask()

    def _configure(self, *, reset: bool = False) -> None:
        if not self._configures:
            raise ReplayError(
                f"there is no pool {self._keys.namespace!r} at {self._connection.where}: nothing was ever pushed there"
            )
        answer = self._connection.script(
            "configure", self._keys.state, {"cfg": configuration.encode(self._settings), "reset": reset}
        )
        self._configured = True
        if answer[b"changed"]:
            logger.info("%r: settings applied", self)


def _check_priority(group_id: str, priority: float) -> None:
    if not (math.isfinite(priority) and priority >= 0):
        raise ValueError(f"priority of group {group_id!r} must be finite and >= 0, got {priority}")


def _batches(client: redis.Redis, pattern: str) -> Iterator[list[bytes]]:
    cursor: int | None = None
    while cursor != 0:
        cursor, keys = cast(tuple[int, list[bytes]], client.scan(cursor or 0, match=pattern, count=1000))
        if keys:
            yield keys
