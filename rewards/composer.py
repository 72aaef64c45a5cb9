"""`Composer`: all components of the configured reward, by name, bounded per turn."""

from __future__ import annotations

from collections.abc import Sequence

from cacherl.config import RewardSection
from cacherl.trajectory import ToolCall
from rewards.base import TrajectoryComponent, TrajectoryContext, TurnComponent, TurnContext
from rewards.components import FinalOutcome, StepPenalty, ToolUse

#: Largest magnitude of one turn's reward.
TURN_BOUND = 1.0


class Composer:
    """Scores turns and trajectories. Deterministic, without state: the same facts always give the same parts.

    Raises:
        ValueError: two components of one kind have the same name.
    """

    def __init__(self, *, turn: Sequence[TurnComponent], trajectory: Sequence[TrajectoryComponent]) -> None:
        for names in ([part.name for part in turn], [part.name for part in trajectory]):
            if len(set(names)) != len(names):
                raise ValueError(f"reward components must have distinct names, got {names}")
        self._turn = tuple(turn)
        self._trajectory = tuple(trajectory)

    @classmethod
    def from_config(cls, section: RewardSection) -> Composer:
        """The components that `section` weighs."""
        return cls(
            turn=(
                ToolUse(needed=section.tool_use, misuse=section.tool_misuse),
                StepPenalty(penalty=section.step_penalty),
            ),
            trajectory=(FinalOutcome(success=section.success, failure=section.failure),),
        )

    def turn(self, calls: Sequence[ToolCall]) -> dict[str, float]:
        """Component -> value of a turn that made `calls`. When the sum leaves [-1, 1], all parts shrink by one factor."""
        context = TurnContext(calls=tuple(calls))
        return _bounded({part.name: part.turn(context) for part in self._turn})

    def trajectory(self, outcome: float) -> dict[str, float]:
        """Component -> value of a finished trajectory with that raw outcome in [0, 1]."""
        context = TrajectoryContext(outcome=outcome)
        return {part.name: part.trajectory(context) for part in self._trajectory}


def _bounded(parts: dict[str, float]) -> dict[str, float]:
    total = abs(sum(parts.values()))
    if total <= TURN_BOUND:
        return parts
    return {name: value * TURN_BOUND / total for name, value in parts.items()}
