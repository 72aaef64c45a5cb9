"""`World`: the tools of one episode, wherever their results come from, and the verdict on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cacherl.errors import EnvironmentFault
from cacherl.trajectory import Message, Tier
from envs.answer import read_answer
from envs.jsontext import canonical
from envs.schema import Toolbox
from envs.simulator import Promising, Simulator, ToolResult, release, run_tool
from envs.tool_cache.cache import ToolCache
from envs.tool_cache.entry import CallKey, Recorded


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

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        """Why a call cannot be made: kind of failure ('unknown_tool', 'arguments') and what to tell the agent; else None."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        """Run a tool. The call is not one of those refused.

        Raises:
            NoResultError: it gave no result.
        """

    async def reply(self, text: str, *, finish_reason: str) -> float | tuple[Message, ...]:
        """What a turn without a call leads to: the verdict in [0, 1], which ends the episode, or what the user says next."""

    def verdict(self) -> float:
        """Verdict in [0, 1] if the episode were cut off now."""

    def state(self) -> dict[str, Any]:
        """Everything that calls have changed, as plain JSON values: equal for equal situations."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state` of the same task."""

    async def close(self) -> None:
        """Release what the episode holds; repeated calls are harmless."""


def state_hash(world: str, state: Any) -> str:
    """Hash of a state of the world of that name.

    Raises:
        EnvironmentFault: the state is none of plain JSON values.
    """
    try:
        return hashlib.blake2b(f"{world} {canonical(state)}".encode(), digest_size=8).hexdigest()
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(f"the state of {world} must be plain JSON values: {error}") from error


class SimulatedWorld:
    """The world of a simulator, its results served from a cache if there is one. A turn without a call is the final answer.

    A recorded result comes with the state that followed it, and the simulator is put into that state: the episode goes on as if
    the recorded call had been made, so an exact hit changes nothing but the time it takes.

    Args:
        name: tells this world from every other one whose results are in the cache.
    """

    def __init__(self, simulator: Simulator, *, name: str, toolbox: Toolbox, cache: ToolCache | None = None) -> None:
        self._simulator = simulator
        self._name = name
        self._toolbox = toolbox
        self._cache = cache

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        return self._toolbox.refusal(name, arguments)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        if self._cache is None:
            return Served(result=await run_tool(self._simulator, name, arguments))
        state = self._simulator.state()
        key = CallKey(state=state_hash(self._name, state), tool=name, arguments=arguments)
        hit = await self._cache.serve(key, read_only=name in self._toolbox.read_only, call=lambda: self._recorded(key))
        if hit.tier != "live":
            self._simulator.restore(hit.recorded.after)
        return Served(result=hit.recorded.result, tier=hit.tier)

    async def _recorded(self, key: CallKey) -> Recorded:
        result = await run_tool(self._simulator, key.tool, key.arguments)
        return Recorded(key=key, result=result, after=self._simulator.state())

    async def reply(self, text: str, *, finish_reason: str) -> float:
        return self._simulator.answer(read_answer(text, finish_reason=finish_reason))

    def verdict(self) -> float:
        return self._simulator.verdict()

    def potential(self) -> float | None:
        return self._simulator.potential() if isinstance(self._simulator, Promising) else None

    def state(self) -> dict[str, Any]:
        return self._simulator.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._simulator.restore(state)

    async def close(self) -> None:
        await release(self._simulator)
