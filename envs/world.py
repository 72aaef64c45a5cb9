"""`World`: the tools of one episode, wherever their results come from, and the verdict on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cacherl.trajectory import Tier
from envs.jsontext import canonical
from envs.observation import TRANSIENT, UNRECORDED
from envs.simulator import Promising, Simulator, ToolResult
from envs.tool_cache.cache import ToolCache
from envs.tool_cache.entry import CallKey, Recorded

Failure = Literal["transient", "timeout", "unrecorded"]


class NoResultError(Exception):
    """A call that got no result, for no fault of whoever made it.

    Args:
        kind: 'transient' and 'timeout': the same call may be made again; 'unrecorded': nothing recorded matches it, and no tool
            may be called.
    """

    def __init__(self, kind: Failure) -> None:
        super().__init__(kind)
        self.kind = kind

    @property
    def text(self) -> str:
        """What the agent is told."""
        return UNRECORDED if self.kind == "unrecorded" else TRANSIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A tool's result.

    Attributes:
        tier: where it came from; None: there is no cache.
        seconds: how long a live call took; 0 of a simulated or recorded one.
    """

    result: ToolResult
    tier: Tier | None = None
    seconds: float = 0.0


class World(Protocol):
    """One episode's world."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        """Run a tool. The arguments are valid by its schema.

        Raises:
            NoResultError: it gave no result.
        """

    def answer(self, value: str | None) -> float:
        """Verdict in [0, 1] on a final answer; None: the turn stated none."""

    def verdict(self) -> float:
        """Verdict in [0, 1] if the episode were cut off now."""

    def potential(self) -> float | None:
        """How promising the present state is, in [0, 1]; None: the world does not say."""

    def state(self) -> dict[str, Any]:
        """Everything that calls have changed, as plain JSON values: equal for equal situations."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state` of the same task."""

    async def close(self) -> None:
        """Release what the episode holds; repeated calls are harmless."""


def state_hash(world: str, state: Any) -> str:
    """Hash of a state of the world of that name."""
    return hashlib.blake2b(f"{world} {canonical(state)}".encode(), digest_size=8).hexdigest()


class SimulatedWorld:
    """The world of a simulator, its results served from a cache if there is one.

    A recorded result comes with the state that followed it, and the simulator is put into that state: the episode goes on as if the
    recorded call had been made, so an exact hit changes nothing but the time it takes.

    Args:
        task_id: of the task that fixes the world.
        read_only: names of the tools that the wider tiers may serve.
    """

    def __init__(
        self, simulator: Simulator, *, task_id: str, read_only: frozenset[str] = frozenset(), cache: ToolCache | None = None
    ) -> None:
        self._simulator = simulator
        self._task_id = task_id
        self._read_only = read_only
        self._cache = cache

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        if self._cache is None:
            return Served(result=self._simulator.call(name, arguments))
        state = self._simulator.state()
        key = CallKey(state=state_hash(self._task_id, state), tool=name, arguments=arguments)
        if hit := await self._cache.find(key, read_only=name in self._read_only):
            self._simulator.restore(hit.recorded.after)
            return Served(result=hit.recorded.result, tier=hit.tier)
        if not self._cache.live:
            raise NoResultError("unrecorded")
        result = self._simulator.call(name, arguments)
        await self._cache.record(Recorded(key=key, result=result, after=self._simulator.state()))
        return Served(result=result, tier="live")

    def answer(self, value: str | None) -> float:
        return self._simulator.answer(value)

    def verdict(self) -> float:
        return self._simulator.verdict()

    def potential(self) -> float | None:
        return self._simulator.potential() if isinstance(self._simulator, Promising) else None

    def state(self) -> dict[str, Any]:
        return self._simulator.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._simulator.restore(state)

    async def close(self) -> None:
        """Nothing to release."""
