"""Axis and Space: which config keys a search varies, and over which values.

In YAML, and after `--axis KEY=` on the command line::

    reward.tool_use: [0.0, 0.05, 0.1]                 # these values; any type that the key takes
    reward.step_penalty: {low: -0.1, high: 0.0}       # any number between, bounds included
    learner.lr: {low: 1e-5, high: 1e-3, log: true}    # the same, uniform in the logarithm
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from cacherl.config import RunConfig
from cacherl.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

#: Keys that the search itself sets for every trial, and those that all trials must share.
_RESERVED = ("run.name", "run.dir", "run.if_exists", "metrics.jsonl", "ray.address", "replay.namespace")
_RANGE_KEYS = {"low", "high", "log"}

#: A value as the search algorithm knows it: the index of a listed value, or a number within a range.
Code = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """An axis of listed values."""

    values: tuple[Any, ...]

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The values that must be valid for all of them to be."""
        return self.values

    def decode(self, code: Code) -> Any:
        return self.values[int(code)]

    def encode(self, value: Any) -> Code:
        """
        Raises:
            ValueError: not one of the values.
        """
        return self.values.index(value)

    def distribution(self) -> BaseDistribution:
        """For Optuna, over codes."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An axis of the numbers from `low` to `high`, both included, to four digits; whole ones only where `integer`."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The values that must be valid for all of them to be."""
        return self.low, self.high

    def decode(self, code: Code) -> Any:
        return code if self.integer else min(max(float(f"{code:.4g}"), self.low), self.high)

    def encode(self, value: Any) -> Code:
        """
        Raises:
            ValueError: outside of the range.
        """
        if not self.low <= value <= self.high:
            raise ValueError(f"{value!r} is not within {self.low} and {self.high}")
        return int(value) if self.integer else float(value)

    def distribution(self) -> BaseDistribution:
        """For Optuna, over codes."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)


Axis = Values | Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The axes by config key, in the order in which they were given."""

    axes: Mapping[str, Axis]

    def require_lists(self) -> None:
        """
        Raises:
            ConfigError: an axis is a range, of which there is no grid.
        """
        for key, axis in self.axes.items():
            if isinstance(axis, Range):
                raise ConfigError(f"{key}: a grid needs listed values, got a range; list them, or take search 'bayes'")

    def grid(self) -> list[dict[str, Any]]:
        """Every combination of the listed values, the last axis varying fastest."""
        columns = [axis.extremes for axis in self.axes.values()]
        return [dict(zip(self.axes, point, strict=True)) for point in itertools.product(*columns)]

    def decode(self, codes: Mapping[str, Code]) -> dict[str, Any]:
        """A point's values from its codes."""
        return {key: axis.decode(codes[key]) for key, axis in self.axes.items()}

    def encode(self, point: Mapping[str, Any]) -> dict[str, Code]:
        """A point's codes from its values.

        Raises:
            ValueError: the point is not in this space.
        """
        return {key: axis.encode(point[key]) for key, axis in self.axes.items()}


def parse_space(raw: Mapping[str, Any], base: RunConfig) -> Space:
    """Axes from plain YAML values, for the config that they vary.

    Raises:
        ConfigError: no axis, a key that a search cannot vary, or an axis that is neither a list nor a range.
    """
    if not raw:
        raise ConfigError("the search space is empty: give it in the file of --space, or as --axis KEY=VALUES")
    return Space(axes={str(key): _axis(str(key), value, base) for key, value in raw.items()})


def parse_axes(texts: Sequence[str]) -> dict[str, Any]:
    """The axes of a command line: 'learner.lr={low: 1e-5, high: 1e-3}' -> key and plain value.

    Raises:
        ConfigError: no such form, or not YAML.
    """
    axes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--axis {text!r} must have the form KEY=[VALUE, ...] or KEY={{low: .., high: ..}}")
        try:
            axes[key.strip()] = OmegaConf.to_container(OmegaConf.create(f"axis: {value}"))["axis"]
        except (OmegaConfBaseException, YAMLError) as error:
            raise ConfigError(f"--axis {text!r} is not YAML: {error}") from error
    return axes


def as_overrides(point: Mapping[str, Any]) -> list[str]:
    """The point as overrides of `cacherl train`."""
    return [f"{key}={json.dumps(value)}" for key, value in point.items()]


def _axis(key: str, raw: Any, base: RunConfig) -> Axis:
    if key in _RESERVED:
        raise ConfigError(f"{key}: the search sets this key for its trials; it cannot be an axis")
    if isinstance(raw, list):
        if not raw:
            raise ConfigError(f"{key}: an axis needs at least one value, got []")
        return Values(values=tuple(raw))
    if isinstance(raw, Mapping) and {"low", "high"} <= set(raw) <= _RANGE_KEYS:
        return _range(key, raw, base)
    raise ConfigError(f"{key}: an axis is a list of values or {{low: .., high: .., log: true|false}}, got {raw!r}")


def _range(key: str, raw: Mapping[str, Any], base: RunConfig) -> Range:
    low, high, log = raw["low"], raw["high"], raw.get("log", False)
    for name, bound in (("low", low), ("high", high)):
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise ConfigError(f"{key}: {name} must be a number, got {bound!r}")
    if not isinstance(log, bool):
        raise ConfigError(f"{key}: log must be true or false, got {log!r}")
    if low >= high:
        raise ConfigError(f"{key}: low {low!r} must be below high {high!r}")
    if log and low <= 0:
        raise ConfigError(f"{key}: low {low!r} must be above 0 on a logarithmic axis")
    return Range(low=low, high=high, log=log, integer=_is_integer(key, base))


def _is_integer(key: str, base: RunConfig) -> bool:
    """The key holds a whole number now; a key that does not exist is found when the axis is validated."""
    value: Any = base.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return isinstance(value, int) and not isinstance(value, bool)
