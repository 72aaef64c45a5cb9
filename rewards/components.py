"""The reward's components: final outcome, tool use, step penalty."""

from __future__ import annotations

from dataclasses import dataclass

from cacherl.trajectory import ToolCall
from rewards.base import TrajectoryContext, TurnContext

#: Failures of a call for which the world is to blame, not the model.
_WORLD_FAILED = ("transient", "timeout", "unrecorded")
#: Failures of a call that the model caused.
_MODEL_FAILED = ("parse", "unknown_tool", "arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalOutcome:
    """`failure` for outcome 0, `success` for outcome 1, linear between for partial credit."""

    success: float
    failure: float
    name: str = "final"

    def trajectory(self, context: TrajectoryContext) -> float:
        return self.failure + (self.success - self.failure) * context.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call that the solution needs earns `needed` when it first succeeds; an irrelevant or invalid one costs `misuse`.

    A needed call that is made again earns nothing, nor does a call that failed for no fault of the model's.
    """

    needed: float
    misuse: float
    name: str = "tool_use"

    def turn(self, context: TurnContext) -> float:
        return sum(self._value(call) for call in context.calls)

    def _value(self, call: ToolCall) -> float:
        if call.error in _WORLD_FAILED:
            return 0.0
        if call.error in _MODEL_FAILED or "irrelevant" in call.tags:
            return self.misuse
        return self.needed if call.ok and "needed" in call.tags and "first" in call.tags else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPenalty:
    """`penalty` (<= 0) for every turn, the final answer's included."""

    penalty: float
    name: str = "step_penalty"

    def turn(self, context: TurnContext) -> float:
        return self.penalty
