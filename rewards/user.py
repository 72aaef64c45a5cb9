"""Components that a user brings, by dotted path."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cacherl.errors import ConfigError
from cacherl.reward_settings import ComponentSection
from cacherl.trajectory import Trajectory
from rewards.base import Component, Reach, Step

Bounds = Callable[[int], Reach]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """`weight` times the user's value of a turn, which is clipped to [-1, 1]."""

    name: str
    weight: float
    function: Callable[[Step], float]
    bounds: Bounds

    def turn(self, step: Step) -> float:
        return self.weight * _unit(self.function(step), self.name)

    def reach(self, turns: int) -> Reach:
        return self.bounds(turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTrajectory:
    """`weight` times the user's value of a finished trajectory, which is clipped to [-1, 1]."""

    name: str
    weight: float
    function: Callable[[Trajectory], float]
    bounds: Bounds

    def trajectory(self, trajectory: Trajectory) -> float:
        return self.weight * _unit(self.function(trajectory), self.name)

    def reach(self, turns: int) -> Reach:
        return self.bounds(turns)


def load_component(section: ComponentSection) -> list[Component]:
    """The parts of one user component: one for its turns and one for whole trajectories, or either.

    A function is a `turn`; a class is constructed with `settings` and has `turn(step)`, `trajectory(trajectory)` or both.
    It may state what it can reach before weighting, as a method ``reach(turns) -> Reach``; else it is taken to reach 1 in
    every turn and 1 at the end, as far as it has the method.

    Raises:
        ConfigError: it cannot be imported, constructed or is neither.
    """
    found = _imported(section)
    if inspect.isclass(found):
        try:
            found = found(**section.settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"reward component {section.name}: {section.path}(**{section.settings}): {error}") from error
    turn, trajectory = getattr(found, "turn", None), getattr(found, "trajectory", None)
    if turn is None and trajectory is None:
        if not callable(found):
            raise ConfigError(
                f"reward component {section.name}: {section.path} has no turn(step) and no trajectory(trajectory)"
            )
        turn = partial(found, **section.settings)
    bounds = _bounds(section.weight, found, per_turn=turn is not None, whole=trajectory is not None)
    parts: list[Component] = []
    if turn is not None:
        parts.append(UserTurn(name=section.name, weight=section.weight, function=turn, bounds=bounds))
    if trajectory is not None:
        rest = _nothing if parts else bounds  # stated once for both
        parts.append(UserTrajectory(name=section.name, weight=section.weight, function=trajectory, bounds=rest))
    return parts


def _imported(section: ComponentSection) -> Any:
    module, _, attribute = section.path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"reward component {section.name}: {section.path} cannot be imported: {error}") from error


def _bounds(weight: float, owner: Any, *, per_turn: bool, whole: bool) -> Bounds:
    def bounds(turns: int) -> Reach:
        if callable(getattr(owner, "reach", None)):
            own = owner.reach(turns)
            up, down = abs(weight) * own.gain, abs(weight) * own.toll
        else:
            up = down = abs(weight) * (turns * per_turn + whole)
        return Reach(gain=up, toll=down) if weight > 0 else Reach(gain=down, toll=up)

    return bounds


def _nothing(turns: int) -> Reach:
    del turns
    return Reach()


def _unit(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"reward component {name} returned {value!r}, must be a finite number")
    return min(max(float(value), -1.0), 1.0)
