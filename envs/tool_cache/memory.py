"""`MemoryStore`: recorded results of this process, with a recording on disk if there is to be one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from envs.tool_cache.entry import Recorded
from envs.tool_cache.normal import normal
from envs.tool_cache.recording import Recording
from envs.tool_cache.store import CANDIDATES, Candidate


@dataclass(frozen=True, slots=True)
class _Kept:
    line: str
    normalised: str
    bucket: str
    arguments: Mapping[str, Any]


class MemoryStore:
    """Keeps lines of JSON, so that no two episodes ever get the same object, and normal forms beside them, for near matches.

    Args:
        recording: read now; appended to by every `put`. None: nothing outlives the process.
    """

    blocking = False

    def __init__(self, *, max_entries: int, max_bytes: int, recording: Recording | None = None) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._recording = recording
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._normalised: dict[str, str] = {}
        self._buckets: dict[str, dict[str, None]] = {}
        self._listings: dict[str, str] = {}
        self._bytes = 0
        if recording is not None:
            content = recording.read()
            self._listings.update(content.listings)
            for recorded in content.results:
                self._keep(recorded, recorded.dump())

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, exact: str) -> Recorded | None:
        kept = self._kept.get(exact)
        if kept is None:
            return None
        self._kept.move_to_end(exact)
        bucket = self._buckets[kept.bucket]
        bucket[exact] = bucket.pop(exact)
        return Recorded.load(kept.line)

    def get_normalised(self, normalised: str) -> Recorded | None:
        exact = self._normalised.get(normalised)
        return None if exact is None else self.get(exact)

    def candidates(self, bucket: str) -> list[Candidate]:
        latest = islice(reversed(self._buckets.get(bucket, {})), CANDIDATES)
        return [(exact, self._kept[exact].arguments) for exact in latest]

    def put(self, recorded: Recorded) -> None:
        line = recorded.dump()
        if not self._keep(recorded, line):
            return
        if self._recording is not None:
            self._recording.append(line)

    def get_listing(self, toolkit: str) -> str | None:
        return self._listings.get(toolkit)

    def put_listing(self, toolkit: str, tools: str) -> None:
        if self._listings.get(toolkit) == tools:
            return
        self._listings[toolkit] = tools
        if self._recording is not None:
            self._recording.append_listing(toolkit, tools)

    def results(self) -> Iterator[Recorded]:
        return (Recorded.load(kept.line) for kept in list(self._kept.values()))

    def close(self) -> None:
        """Nothing to release."""

    def _keep(self, recorded: Recorded, line: str) -> bool:
        """False when it is larger than all that may be kept, or kept already."""
        exact = recorded.key.exact
        known = self._kept.get(exact)
        if len(line) > self._max_bytes or (known is not None and known.line == line):
            return False
        if known is not None:
            self._drop(exact)
        key = recorded.key
        kept = _Kept(line, key.normalised, key.bucket, normal(key.arguments))
        self._kept[exact] = kept
        self._normalised.setdefault(kept.normalised, exact)
        self._buckets.setdefault(kept.bucket, {})[exact] = None
        self._bytes += len(line)
        while len(self._kept) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))
        return True

    def _drop(self, exact: str) -> None:
        kept = self._kept.pop(exact)
        self._bytes -= len(kept.line)
        if self._normalised.get(kept.normalised) == exact:
            del self._normalised[kept.normalised]
        bucket = self._buckets[kept.bucket]
        del bucket[exact]
        if not bucket:
            del self._buckets[kept.bucket]
