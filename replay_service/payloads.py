"""Where payloads live: beside the index, or spread over further servers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import redis
from redis.exceptions import NoScriptError

from replay_service import scripts
from replay_service.connection import Connection
from replay_service.health import check_server
from replay_service.keys import Keys

#: Payloads read with one command: enough to keep the wire busy, few enough that one reader does not stall the others.
_READ_CHUNK = 32
#: A payload that was set but not indexed disappears so long after its push must have given up.
_UNCLAIMED_S = 60
#: Payload bytes of one MULTI; servers close connections that send a gigabyte at once, and serve nobody else meanwhile.
_TRAIN_BYTES = 32 * 2**20
#: Freed payloads that may pile up on the shards before a push deletes them, and how many go with one command.
_GARBAGE = 32
#: Deletes a payload unless somebody has claimed it, by removing its expiry, or the index has freed it, which sees to it itself.
_UNLINK_UNCLAIMED = "if redis.call('PTTL', KEYS[1]) >= 0 then redis.call('UNLINK', KEYS[1]) end"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A group on its way: its encoded payload, and the packed arguments of push.lua, to store it and to ask for admission."""

    group_id: str
    trajectories: int
    payload: bytes
    arguments: bytes
    question: bytes


class Payloads(Protocol):
    """Payloads of one pool."""

    def check(self) -> None:
        """Raise `ReplayError` unless every server can hold payloads."""

    def push(self, parcels: Sequence[Parcel]) -> list[Any]:
        """Store payloads and index them with push.lua: of each both or neither.

        Returns the script's answers, aligned; in place of one, the error that the server met with that group.
        """

    def replace(self, group_id: str, payload: bytes, facts: Mapping[str, Any]) -> Any:
        """Put `payload` in the place of a group's and update the index with rescore.lua. Returns the script's answer."""

    def read(self, group_ids: Sequence[str]) -> list[bytes | None]:
        """Payloads, aligned; None where there is none."""

    def collect(self) -> int:
        """Delete payloads that the index has freed; returns how many."""

    def clear(self) -> int:
        """Delete every key of the pool; returns how many."""

    def close(self) -> None:
        """Release the connections."""


class BesideIndex:
    """Payloads on the index's server: one MULTI writes both, and as many groups as are pushed together."""

    def __init__(self, index: Connection, keys: Keys) -> None:
        self._index = index
        self._keys = keys

    def check(self) -> None:
        self._index.run(check_server)

    def push(self, parcels: Sequence[Parcel]) -> list[Any]:
        answers: list[Any] = []
        for part in _trains(parcels):
            answers += self._index.run(lambda client, part=part: self._push(client, part))  # type: ignore[misc]
        return answers

    def _push(self, client: redis.Redis, parcels: Sequence[Parcel]) -> list[Any]:
        script = scripts.load("push")
        for _ in range(2):
            with client.pipeline(transaction=True) as pipe:
                for parcel in parcels:
                    pipe.set(self._keys.incoming(parcel.group_id), parcel.payload, ex=_UNCLAIMED_S)
                    pipe.evalsha(script.sha, 1, self._keys.state, parcel.arguments)
                answers = pipe.execute(raise_on_error=False)[1::2]
            if not any(isinstance(answer, NoScriptError) for answer in answers):
                return [answer if isinstance(answer, redis.RedisError) else scripts.unpack(answer) for answer in answers]
            client.script_load(script.source)
        raise redis.ConnectionError("the server forgets its scripts")

    def replace(self, group_id: str, payload: bytes, facts: Mapping[str, Any]) -> Any:
        return self._index.script("rescore", self._keys.state, scripts.pack({**facts, "gid": group_id, "payload": payload}))

    def read(self, group_ids: Sequence[str]) -> list[bytes | None]:
        return _read(self._index, self._keys, group_ids)

    def collect(self) -> int:
        return 0

    def clear(self) -> int:
        return _clear(self._index, self._keys)

    def close(self) -> None:
        self._index.close()


class Sharded:
    """Payloads on several servers, by hash of the group id; the index, hence every rule and every draw, stays on one.

    The index takes some hundred bytes a group where a payload takes hundreds of kilobytes, so it is payloads that outgrow a
    server. A payload is written first, with an expiry, then indexed, then its expiry is removed; what the index frees is
    listed there until it has been deleted. A client that dies in between leaves nothing behind for longer than that expiry.
    """

    def __init__(self, index: Connection, shards: Sequence[Connection], keys: Keys) -> None:
        self._index = index
        self._shards = tuple(shards)
        self._keys = keys
        self._readers = ThreadPoolExecutor(len(self._shards), thread_name_prefix="replay-shard")

    def check(self) -> None:
        for server in (self._index, *self._shards):
            server.run(check_server)

    def push(self, parcels: Sequence[Parcel]) -> list[Any]:
        return [self._push(parcel) for parcel in parcels]

    def _push(self, parcel: Parcel) -> Any:
        shard, key = self._shard_of(parcel.group_id), self._keys.payload(parcel.group_id)
        unclaimed_s = math.ceil(_UNCLAIMED_S + self._index.patience_s)
        shard.run(lambda client: client.set(key, parcel.payload, nx=True, ex=unclaimed_s))
        answer = self._index.script("push", self._keys.state, parcel.arguments)
        if not answer.get(b"kept"):
            shard.run(lambda client: client.eval(_UNLINK_UNCLAIMED, 1, key))
        elif not shard.run(lambda client: client.persist(key) or client.exists(key)):
            self._put_back(shard, key, parcel)
        if answer.get(b"garbage", 0) >= _GARBAGE:
            self.collect()
        return answer

    def _put_back(self, shard: Connection, key: bytes, parcel: Parcel) -> None:
        """Write the payload of an indexed group again, unless the index has freed it meanwhile, which is why it may be gone."""
        shard.run(lambda client: client.set(key, parcel.payload, nx=True))
        if not self._index.run(lambda client: client.hexists(self._keys.meta, scripts.raw(parcel.group_id))):
            shard.run(lambda client: client.unlink(key))

    def replace(self, group_id: str, payload: bytes, facts: Mapping[str, Any]) -> Any:
        """As the two servers cannot change together, a client that dies in between leaves the new payload with the old
        priority and without the mark, so that whoever goes on does this group again."""
        probe = self._index.script("rescore", self._keys.state, scripts.pack({**facts, "gid": group_id, "probe": True}))
        if probe[b"status"] != b"ok":
            return probe
        key = self._keys.payload(group_id)
        self._shard_of(group_id).run(lambda client: client.set(key, payload, xx=True, keepttl=True))
        return self._index.script("rescore", self._keys.state, scripts.pack({**facts, "gid": group_id}))

    def read(self, group_ids: Sequence[str]) -> list[bytes | None]:
        places: dict[Connection, list[int]] = {}
        for place, group_id in enumerate(group_ids):
            places.setdefault(self._shard_of(group_id), []).append(place)
        payloads: list[bytes | None] = [None] * len(group_ids)
        parts = self._readers.map(
            lambda item: _read(item[0], self._keys, [group_ids[place] for place in item[1]]), list(places.items())
        )
        for part, where in zip(parts, places.values(), strict=True):
            for place, payload in zip(where, part, strict=True):
                payloads[place] = payload
        return payloads

    def collect(self) -> int:
        freed = 0
        while group_ids := self._index.script("garbage", self._keys.state, scripts.pack({"limit": _GARBAGE})).get(b"gids"):
            for raw in group_ids:
                group_id = scripts.text(raw)
                key = self._keys.payload(group_id)
                self._shard_of(group_id).run(lambda client, key=key: client.unlink(key))  # type: ignore[misc]
            self._index.run(lambda client, done=group_ids: client.zrem(self._keys.garbage, *done))  # type: ignore[misc]
            freed += len(group_ids)
        return freed

    def clear(self) -> int:
        return sum(_clear(server, self._keys) for server in (*self._shards, self._index))

    def close(self) -> None:
        self._readers.shutdown(wait=False)
        for server in (self._index, *self._shards):
            server.close()

    def _shard_of(self, group_id: str) -> Connection:
        return self._shards[zlib.crc32(scripts.raw(group_id)) % len(self._shards)]


def _trains(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """Cut into parts that a server takes in one piece: at least a parcel each, and at most _TRAIN_BYTES beyond the first."""
    part: list[Parcel] = []
    size = 0
    for parcel in parcels:
        if part and size + len(parcel.payload) > _TRAIN_BYTES:
            yield part
            part, size = [], 0
        part.append(parcel)
        size += len(parcel.payload)
    if part:
        yield part


def _read(server: Connection, keys: Keys, group_ids: Sequence[str]) -> list[bytes | None]:
    payloads: list[bytes | None] = []
    for start in range(0, len(group_ids), _READ_CHUNK):
        names = [keys.payload(group_id) for group_id in group_ids[start : start + _READ_CHUNK]]
        payloads.extend(server.run(partial(_mget, names=names)))
    return payloads


def _mget(client: redis.Redis, names: list[bytes]) -> list[bytes | None]:
    return cast(list[bytes | None], client.mget(names))


def _clear(server: Connection, keys: Keys) -> int:
    """The state goes last: while it is there, a clear that was interrupted can be repeated."""
    state = keys.state.encode()

    def unlink(client: redis.Redis) -> int:
        batches = ([key for key in batch if key != state] for batch in _batches(client, keys.everything))
        return sum(int(client.unlink(*batch)) for batch in batches if batch) + int(client.unlink(state))

    return server.run(unlink)


def _batches(client: redis.Redis, pattern: str) -> Iterator[list[bytes]]:
    cursor: int | None = None
    while cursor != 0:
        cursor, keys = cast(tuple[int, list[bytes]], client.scan(cursor or 0, match=pattern, count=1000))
        if keys:
            yield keys
