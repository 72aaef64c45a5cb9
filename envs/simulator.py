"""Family, Scenario, Simulator: the three objects that make a family of tasks; everything else is shared.

`Family` draws scenarios, a `Scenario` is one task with its solution, and a `Simulator` is the world of one episode.
`envs.world_env.WorldEnv` adds parsing, validation, noise and rendering, `envs.source.SimulatedSource` sampling and ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from cacherl.errors import EnvironmentFault
from envs.base import Solution, ToolSpec

#: Tags of a call. The solution needs it, or it does not; it was made for the first time, or once more.
NEEDED, IRRELEVANT = "needed", "irrelevant"
FIRST, REPEAT = "first", "repeat"
#: It was made with what an earlier call returned.
USES = "uses"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool returned.

    Attributes:
        content: plain JSON values.
        error: a short text, in place of `content`, with its `kind` as in `ToolCall.error`.
        tags: for the reward.
        lasting: the same call in the same state would give it again, so it may be recorded; false of an error that may pass.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    kind: str = "tool"
    tags: tuple[str, ...] = ()
    lasting: bool = True


class Simulator(Protocol):
    """The world of one episode. Pure: no I/O, no clock, no randomness; or else a `HeldSimulator` whose calls are awaited."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult | Awaitable[ToolResult]:
        """Run a tool. The arguments are valid by its schema."""

    def answer(self, value: str | None) -> float:
        """Verdict in [0, 1] on a final answer; None: the turn stated none."""

    def verdict(self) -> float:
        """Verdict in [0, 1] if the episode were cut off now."""

    def state(self) -> dict[str, Any]:
        """Everything that calls have changed, as plain JSON values: equal for equal situations."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state` of the same task."""


@runtime_checkable
class Promising(Protocol):
    """A simulator, or a world, that can tell how far an episode has come."""

    def potential(self) -> float | None:
        """How promising the present state is, in [0, 1]; a function of task and state alone. None: it cannot tell after all."""


@runtime_checkable
class HeldSimulator(Protocol):
    """A simulator that holds something beyond its memory: a session of the sandbox."""

    async def close(self) -> None:
        """Release it; the episode is over. Repeated calls are harmless."""


async def run_tool(simulator: Simulator, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Call a tool, and wait for its result if it is not there at once.

    Raises:
        EnvironmentFault: what it gives is no `ToolResult`.
    """
    result = simulator.call(name, arguments)
    if isinstance(result, Awaitable):
        result = await result
    if not isinstance(result, ToolResult):
        raise EnvironmentFault(f"tool {name!r} must give a ToolResult (envs/simulator.py), got {type(result).__name__}")
    return result


async def release(simulator: Simulator) -> None:
    """Let go of what a simulator holds, if anything."""
    if isinstance(simulator, HeldSimulator):
        await simulator.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One task: its question, its solution, and a factory of the world, untouched, for every episode."""

    prompt: str
    params: Mapping[str, Any]
    solution: Solution
    start: Callable[[], Simulator]


class Family(Protocol):
    """Draws tasks of one kind."""

    @property
    def name(self) -> str:
        """Prefix of its task ids."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of its simulators."""

    def levels(self, split: str) -> tuple[int, ...]:
        """Difficulties in `split`, easiest first; empty: no such split."""

    def build(self, *, split: str, level: int, seed: int) -> Scenario:
        """The scenario of a seed, the same in every process."""

    def texts(self) -> Iterable[str]:
        """Texts that together hold every word and separator of prompts, tool results, tool errors and answers."""
