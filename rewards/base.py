"""What reward components see and are: pure functions of a turn or of a finished trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cacherl.trajectory import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """One turn: the calls that it made, with the environment's tags, in order."""

    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryContext:
    """One finished trajectory: `outcome` is the raw verdict in [0, 1]."""

    outcome: float


class TurnComponent(Protocol):
    """A part of the reward that every turn earns."""

    @property
    def name(self) -> str:
        """Key among the parts."""

    def turn(self, context: TurnContext) -> float:
        """Weighted value of a turn, in reward units."""


class TrajectoryComponent(Protocol):
    """A part of the reward that a trajectory earns once, at its end."""

    @property
    def name(self) -> str:
        """Key among the parts."""

    def trajectory(self, context: TrajectoryContext) -> float:
        """Weighted value of a finished trajectory, in reward units."""
