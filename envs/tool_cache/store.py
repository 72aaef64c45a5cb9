"""`Store`: where recorded results are kept, bounded, the least recently used going first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from envs.tool_cache.entry import Recorded

#: Results of one tool in one state that are compared for a near match: the most recently used ones.
CANDIDATES = 256

#: A recorded call as `CallKey.exact` and the normal form of its arguments, which nobody may change.
Candidate = tuple[str, Mapping[str, Any]]


class Store(Protocol):
    """Synchronous; `blocking` says whether a call may wait for the network."""

    @property
    def blocking(self) -> bool: ...

    def get(self, exact: str) -> Recorded | None:
        """The result under a `CallKey.exact`, and note its use."""

    def get_normalised(self, normalised: str) -> Recorded | None:
        """The result recorded first under a `CallKey.normalised`, and note its use."""

    def candidates(self, bucket: str) -> list[Candidate]:
        """At most `CANDIDATES` calls under a `CallKey.bucket`, the most recently used first."""

    def put(self, recorded: Recorded) -> None:
        """Keep a result, in place of an earlier one of the same call."""

    def get_listing(self, toolkit: str) -> str | None:
        """What `put_listing` kept under that name."""

    def put_listing(self, toolkit: str, tools: str) -> None:
        """Keep the description of a toolkit's tools; never evicted."""

    def results(self) -> Iterator[Recorded]:
        """All results kept."""

    def close(self) -> None:
        """Release what the store holds."""
