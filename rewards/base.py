"""What a component of the reward sees and is.

Components are pure and deterministic: they are called again when stored trajectories are re-scored, and must give the same
values then. They see what a trajectory records, turn by turn::

    state ──action, calls──▶ results ──▶ next state          -> `turn(step)`, one value for each
    the whole trajectory                                     -> `trajectory(trajectory)`, one value at its end
    all siblings of a group                                  -> `group(members)`, one value for each member
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cacherl.trajectory import Message, ToolCall, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where an episode stands between two turns.

    Attributes:
        prompt: the task's messages; () where they were not recorded.
        turns: everything said and answered so far.
        hash: of the environment's state; '' after the end and where there is none.
        potential: how promising the environment finds the state, in [0, 1]; 0 after the end, None where it does not say.
    """

    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    hash: str
    potential: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn, as a component sees it.

    Attributes:
        action: text of the completion.
        calls: the tool calls in it and what became of them, with the environment's tags.
        results: the tool results, one for each call.
    """

    state: State
    action: str
    calls: tuple[ToolCall, ...]
    results: tuple[Message, ...]
    next_state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a component can do to the return of an episode, in reward units.

    Attributes:
        gain: the most that an episode can earn from it, with one call a turn.
        toll: the most that it takes from an episode that does nothing wrong.
    """

    gain: float = 0.0
    toll: float = 0.0


class Component(Protocol):
    """A part of the reward; it also has at least one of `turn`, `trajectory` and `group` below."""

    @property
    def name(self) -> str:
        """Key among the parts."""

    def reach(self, turns: int) -> Reach:
        """For the domination rule: over an episode of so many turns."""


@runtime_checkable
class TurnComponent(Protocol):
    """Values every turn."""

    def turn(self, step: Step) -> float:
        """Weighted value, in reward units."""


@runtime_checkable
class TrajectoryComponent(Protocol):
    """Values a finished trajectory."""

    def trajectory(self, trajectory: Trajectory) -> float:
        """Weighted value, in reward units."""


@runtime_checkable
class GroupComponent(Protocol):
    """Values the finished siblings of a group together."""

    def group(self, members: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        """Parts of each member's trajectory, weighted, in reward units."""


@runtime_checkable
class Blocking(Protocol):
    """A component that does more than compute a moment: it is called off the event loop."""

    @property
    def blocking(self) -> bool:
        """It waits for a network or a model."""


def steps_of(trajectory: Trajectory) -> Iterator[Step]:
    """The turns of a trajectory with the states between them."""
    states = [
        State(prompt=trajectory.prompt, turns=trajectory.turns[:index], hash=turn.state_hash, potential=potential)
        for index, (turn, potential) in enumerate(zip(trajectory.turns, _potentials(trajectory), strict=True))
    ]
    states.append(State(prompt=trajectory.prompt, turns=trajectory.turns, hash="", potential=0.0))
    for index, turn in enumerate(trajectory.turns):
        yield Step(
            state=states[index],
            action=turn.text,
            calls=turn.calls,
            results=turn.messages,
            next_state=states[index + 1],
        )


def _potentials(trajectory: Trajectory) -> list[float | None]:
    """Potential of the state before each turn.

    A completion that a limit cut off never reached the environment, which so said nothing of the state before it: that one
    counts as the state before, or as 0 at the start. Potentials between the first and the end cancel out in any case.
    """
    known = [turn.potential for turn in trajectory.turns]
    if known and known[-1] is None and trajectory.status.kind == "truncated":
        known[-1] = known[-2] if len(known) > 1 else 0.0
    return known
