"""`ToolCache`: the closest recorded result of a call, in three tiers, and the rule that keeps it correct.

A result is only ever served to a call in the *same state* of the same world: the state is part of every key. Calls that change
the state are served exactly or not at all; read-only ones also by the wider tiers, where these are switched on:

    exact        the same arguments
    normalised   the same but for case, white space, the form of numbers, or declared arguments that are similar enough
    best_effort  the most similar call of the tool that was recorded in this state
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar

from cacherl.environment_settings import ToolCacheSection
from cacherl.trajectory import Tier
from envs.jsontext import compact
from envs.observation import NoResultError
from envs.tool_cache.entry import CallKey, Recorded
from envs.tool_cache.memory import MemoryStore
from envs.tool_cache.normal import normal, similarity_of_normal
from envs.tool_cache.recording import Recording
from envs.tool_cache.redis_store import RedisStore
from envs.tool_cache.store import Store

T = TypeVar("T")
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A recorded result, and how closely its call matches."""

    recorded: Recorded
    tier: Tier


@dataclass(slots=True)
class _Flight:
    """A call that is being made, and how many want its result."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class ToolCache:
    """The cache of one process, as `section` says; its mode is not 'off'."""

    def __init__(self, store: Store, section: ToolCacheSection) -> None:
        self._store = store
        self._serves = section.mode != "record"
        self._records = section.mode != "replay"
        self._tiers = section.tiers
        self._similar = section.similar
        self._flights: dict[str, _Flight] = {}

    async def serve(self, key: CallKey, *, read_only: bool, call: Callable[[], Awaitable[Recorded]]) -> Hit:
        """The closest recorded result, or what `call` gives, which is recorded if it is lasting; then the tier is 'live'.

        Of several callers with the same key at the same time only one calls, unless its result is not to be had.

        Raises:
            NoResultError: nothing recorded matches and no tool may be called; or what `call` raises.
        """
        async with self._alone(key.exact):
            if hit := await self.find(key, read_only=read_only):
                return hit
            if not self._records:
                raise NoResultError("unrecorded")
            recorded = await call()
            if recorded.result.lasting:
                await self.record(recorded)
            return Hit(recorded=recorded, tier="live")

    @asynccontextmanager
    async def _alone(self, exact: str) -> AsyncIterator[None]:
        """One at a time for a key, where the others can be served from what the first one gets."""
        if not self._serves:
            yield
            return
        flight = self._flights.setdefault(exact, _Flight())
        flight.waiting += 1
        try:
            async with flight.lock:
                yield
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._flights.pop(exact, None)

    async def find(self, key: CallKey, *, read_only: bool) -> Hit | None:
        """The closest recorded result that the tiers admit."""
        return await self._do(lambda: self._find(key, read_only)) if self._serves else None

    async def record(self, recorded: Recorded) -> None:
        """Keep a result that the tool gave just now and would give again."""
        if self._records:
            await self._do(lambda: self._store.put(recorded))

    def listing(self, toolkit: str) -> str | None:
        """The recorded description of a toolkit's tools."""
        return self._store.get_listing(toolkit)

    def record_listing(self, toolkit: str, tools: str) -> None:
        """Keep the description of a toolkit's tools."""
        if self._records:
            self._store.put_listing(toolkit, tools)

    def texts(self) -> Iterator[str]:
        """Every recorded result as text."""
        return (compact(dict(recorded.result.content)) for recorded in self._store.results())

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    async def _do(self, action: Callable[[], T]) -> T:
        return await asyncio.to_thread(action) if self._store.blocking else action()

    def _find(self, key: CallKey, read_only: bool) -> Hit | None:
        if found := self._store.get(key.exact):
            return Hit(recorded=found, tier="exact")
        if not read_only:
            return None
        if "normalised" in self._tiers and (found := self._normalised(key)):
            return Hit(recorded=found, tier="normalised")
        if "best_effort" in self._tiers and (found := self._nearest(key, _mean_similarity)):
            return Hit(recorded=found, tier="best_effort")
        return None

    def _normalised(self, key: CallKey) -> Recorded | None:
        if found := self._store.get_normalised(key.normalised):
            return found
        thresholds = self._similar.get(key.tool)
        if not thresholds:
            return None
        return self._nearest(key, lambda asked, known: _declared_similarity(asked, known, thresholds))

    def _nearest(self, key: CallKey, score: Callable[[Mapping[str, Any], Mapping[str, Any]], float]) -> Recorded | None:
        """The recorded call of the same tool and state whose normal form has the highest score above 0; of equals the most
        recently used."""
        best, nearest = 0.0, None
        asked = normal(key.arguments)
        for exact, known in self._store.candidates(key.bucket):
            value = score(asked, known)
            if value > best:
                best, nearest = value, exact
        return None if nearest is None else self._store.get(nearest)


def _declared_similarity(asked: Mapping[str, Any], known: Mapping[str, Any], thresholds: Mapping[str, float]) -> float:
    """Mean similarity of the declared arguments; 0 if one is below its threshold, or any other argument is not the same."""
    if asked.keys() != known.keys() or any(asked[name] != known[name] for name in asked if name not in thresholds):
        return 0.0
    declared = [(similarity_of_normal(asked[name], known[name]), thresholds[name]) for name in asked if name in thresholds]
    if not declared or any(value < threshold for value, threshold in declared):
        return 0.0
    return fmean(value for value, _ in declared)


def _mean_similarity(asked: Mapping[str, Any], known: Mapping[str, Any]) -> float:
    """Over all arguments of either call, a missing one counting 0; slightly above 0 even if nothing is alike."""
    names = asked.keys() | known.keys()
    total = sum(similarity_of_normal(asked[name], known[name]) for name in asked.keys() & known.keys())
    return 1e-9 + total / len(names) if names else 1.0


def open_cache(section: ToolCacheSection) -> ToolCache | None:
    """The cache that `section` describes; None when it is off.

    Raises:
        ConfigError: the recording is missing or damaged, or the server cannot be reached.
    """
    if section.mode == "off":
        return None
    limits = {"max_entries": section.max_entries, "max_bytes": section.max_mib * _MIB}
    if section.store == "redis":
        assert section.url is not None
        return ToolCache(RedisStore(section.url, section.namespace, **limits), section)
    recording = None
    if section.path is not None:
        recording = Recording(section.path, keep=section.max_entries, needed=section.mode == "replay")
    return ToolCache(MemoryStore(**limits, recording=recording), section)
