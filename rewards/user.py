"""Components that a user brings, by dotted path."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from cacherl.errors import CacheRLError, ConfigError
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
    blocking: bool = False

    def turn(self, step: Step) -> float:
        return self.weight * _unit(self.function, step, self.name)

    def reach(self, turns: int) -> Reach:
        return self.bounds(turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTrajectory:
    """`weight` times the user's value of a finished trajectory, which is clipped to [-1, 1]."""

    name: str
    weight: float
    function: Callable[[Trajectory], float]
    bounds: Bounds
    blocking: bool = False

    def trajectory(self, trajectory: Trajectory) -> float:
        return self.weight * _unit(self.function, trajectory, self.name)

    def reach(self, turns: int) -> Reach:
        return self.bounds(turns)


def load_component(section: ComponentSection) -> list[Component]:
    """The parts of one user component: one for its turns and one for whole trajectories, or either.

    A function is a `turn`; a class is constructed with `settings` and has `turn(step)`, `trajectory(trajectory)` or both, or is
    called as a `turn`. It may state what it can reach before weighting, as a method ``reach(turns) -> Reach``; else it is taken
    to reach 1 in every turn and 1 at the end, as far as it has the method. With ``blocking = True`` it is called off the
    event loop of its actor.

    Raises:
        ConfigError: it cannot be imported, constructed or called with what it is to value, or is neither.
    """
    found, settings = _made(section)
    turn, trajectory = getattr(found, "turn", None), getattr(found, "trajectory", None)
    if turn is None and trajectory is None:
        if not callable(found):
            raise ConfigError(
                f"reward component {section.name}: {section.path} has no turn(step) and no trajectory(trajectory)"
            )
        turn = partial(found, **settings)
    elif settings:
        raise ConfigError(
            f"reward component {section.name}: {section.path} is an object; only a class or function takes settings"
        )
    for what, function in (("turn(step)", turn), ("trajectory(trajectory)", trajectory)):
        if function is not None:
            _require_value_of_one(section, what, function)
    bounds = _bounds(section, found, per_turn=turn is not None, whole=trajectory is not None)
    blocking = bool(getattr(found, "blocking", False))
    parts: list[Component] = []
    if turn is not None:
        parts.append(UserTurn(name=section.name, weight=section.weight, function=turn, bounds=bounds, blocking=blocking))
    if trajectory is not None:
        rest = _nothing if parts else bounds  # stated once for both
        parts.append(
            UserTrajectory(name=section.name, weight=section.weight, function=trajectory, bounds=rest, blocking=blocking)
        )
    return parts


def source_digest(section: ComponentSection) -> str:
    """Hash of the file that the component is in; '' where it is in none. What it imports in turn is not looked at.

    Raises:
        ConfigError: it cannot be imported.
    """
    spec = getattr(_module(section), "__spec__", None)
    path = Path(spec.origin) if spec is not None and spec.has_location else None
    return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else ""


def _module(section: ComponentSection) -> ModuleType:
    try:
        return importlib.import_module(section.path.rpartition(".")[0])
    except Exception as error:
        raise ConfigError(f"reward component {section.name}: {section.path} cannot be imported: {error!r}") from error


def _made(section: ComponentSection) -> tuple[Any, dict[str, Any]]:
    """What the path names, a class as an instance of it, and the settings that are still to be given to a function."""
    try:
        found = getattr(_module(section), section.path.rpartition(".")[2])
    except AttributeError as error:
        raise ConfigError(f"reward component {section.name}: {section.path} cannot be imported: {error!r}") from error
    if not inspect.isclass(found):
        return found, section.settings
    try:
        return found(**section.settings), {}
    except Exception as error:
        raise ConfigError(f"reward component {section.name}: {section.path}(**{section.settings}): {error!r}") from error


def _require_value_of_one(section: ComponentSection, what: str, function: Any) -> None:
    problem = None
    settings = function.keywords if isinstance(function, partial) else {}
    function = function.func if isinstance(function, partial) else function
    if not callable(function) or inspect.iscoroutinefunction(function):
        problem = f"it is {function!r}"
    else:
        try:
            inspect.signature(function).bind(None, **settings)
        except TypeError as error:
            problem = str(error)
        except ValueError:
            pass  # of a builtin, which does not tell
    if problem is not None:
        raise ConfigError(
            f"reward component {section.name}: {what} of {section.path} must be a plain function of one argument, "
            f"settings apart: {problem}"
        )


def _bounds(section: ComponentSection, owner: Any, *, per_turn: bool, whole: bool) -> Bounds:
    weight = section.weight

    def bounds(turns: int) -> Reach:
        up = down = abs(weight) * (turns * per_turn + whole)
        if callable(getattr(owner, "reach", None)):
            try:
                own = owner.reach(turns)
                up, down = abs(weight) * own.gain, abs(weight) * own.toll
            except Exception as error:
                raise ConfigError(
                    f"reward component {section.name}: reach({turns}) of {section.path} must return a Reach: {error!r}"
                ) from error
        return Reach(gain=up, toll=down) if weight > 0 else Reach(gain=down, toll=up)

    return bounds


def _nothing(turns: int) -> Reach:
    del turns
    return Reach()


def _unit(function: Callable[[Any], Any], valued: Any, name: str) -> float:
    try:
        value = function(valued)
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except CacheRLError:
        raise
    except Exception as error:
        raise ValueError(f"reward component {name} raised {error!r}") from error
    if not math.isfinite(number):
        raise ValueError(f"reward component {name} returned {value!r:.80}, must be a finite number")
    return min(max(number, -1.0), 1.0)
