"""ToolCost: what the calls of a turn cost, in money or in time, up to a cap for the episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cacherl.trajectory import ToolCall
from rewards.base import Reach, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCost:
    """`rate` (<= 0) times `amount` of the calls, until the episode has paid `cap` (> 0) in all."""

    rate: float
    cap: float
    amount: Callable[[Sequence[ToolCall]], float]
    name: str

    def turn(self, step: Step) -> float:
        before = sum(self.amount(turn.calls) for turn in step.state.turns)
        return self._paid(before + self.amount(step.calls)) - self._paid(before)

    def reach(self, turns: int) -> Reach:
        del turns
        return Reach(toll=self.cap)

    def _paid(self, amount: float) -> float:
        return max(-self.cap, self.rate * amount)


def seconds(calls: Sequence[ToolCall]) -> float:
    """Seconds that calls took."""
    return sum(call.seconds for call in calls)


def declared(costs: Mapping[str, float]) -> Callable[[Sequence[ToolCall]], float]:
    """The declared cost of the calls that reached a tool, whether it was then answered from a cache or not.

    Args:
        costs: tool -> cost of one call, in the environment's unit.
    """
    unreached = ("parse", "unknown_tool", "arguments")
    return lambda calls: sum(costs.get(call.name, 0.0) for call in calls if call.error not in unreached)
