"""`CallLog`: which calls of an episode the solution needs, and which were made before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envs.base import PlannedCall
from envs.jsontext import canonical
from envs.simulator import FIRST, IRRELEVANT, NEEDED, REPEAT


class CallLog:
    """Tags calls for the reward, and tells whether the evidence is complete.

    Args:
        needed: calls that the solution needs.
        evidence: those among them without which no answer counts.
    """

    def __init__(self, *, needed: Iterable[PlannedCall], evidence: Iterable[PlannedCall] = ()) -> None:
        self._needed = {_key(call.name, call.arguments) for call in needed}
        self._evidence = {_key(call.name, call.arguments) for call in evidence}
        self._done: set[str] = set()

    def record(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Note that a call was made; its tags."""
        key = _key(name, arguments)
        tags = (NEEDED if key in self._needed else IRRELEVANT, REPEAT if key in self._done else FIRST)
        self._done.add(key)
        return tags

    @property
    def complete(self) -> bool:
        """All evidence has been seen."""
        return self._evidence <= self._done

    @property
    def progress(self) -> float:
        """Share of the needed calls that were made, in [0, 1]."""
        return len(self._needed & self._done) / len(self._needed) if self._needed else 1.0

    def made(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """The call was made before."""
        return _key(name, arguments) in self._done

    def state(self) -> list[str]:
        """The calls made so far, as plain JSON values."""
        return sorted(self._done)

    def restore(self, state: Iterable[str]) -> None:
        """Go back to a `state`."""
        self._done = set(state)


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    return name + canonical(arguments)
