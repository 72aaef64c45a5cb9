"""TuneSettings: how a search goes about it, and the checks that are made before any trial starts."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError
from yaml import YAMLError

from cacherl.config import RunConfig, load_config
from cacherl.errors import ConfigError
from cacherl.metrics import lookup
from cacherl.section import Section
from deploy.tuning.space import Space, as_overrides, parse_space

#: Combinations of extreme values that are tried out before the search; beyond that each value is tried by itself.
_MOST_COMBINATIONS = 512
#: What `ray.tune` and the Bayesian search import.
_PACKAGES = ("optuna", "pandas", "pyarrow")


class EarlyStoppingSection(Section):
    """ASHA: a trial goes on past update min_updates * reduction**k if it is among the best 1/reduction that got there."""

    enabled: bool = True
    min_updates: int | None = Field(None, ge=1, description="updates that every trial gets; null: a sixth of run.updates")
    reduction: float = Field(3.0, gt=1)


class TuneSettings(Section):
    """The file of `--space`, apart from the base config."""

    search: Literal["grid", "bayes"] = Field("bayes", description="every combination, or Optuna's TPE")
    trials: int = Field(20, ge=1, description="of a Bayesian search; a grid has as many as it has points")
    metric: str = Field("eval/success", description="any metric of a run; its last value judges a trial")
    mode: Literal["max", "min"] = "max"
    concurrency: int | None = Field(None, ge=1, description="trials at a time; null: as many as the cluster holds")
    seed: int = Field(0, ge=0, description="of the search; the trials' own is run.seed")
    early_stopping: EarlyStoppingSection = EarlyStoppingSection()
    space: dict[str, Any] = Field(default_factory=dict, description="config key -> list of values, or {low, high, log}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search that has been checked.

    Attributes:
        base: the config that every trial starts from.
        config, overrides: where `base` came from; a trial adds its point and its own name.
        folder: of everything that the search writes.
        objective: dotted path of a function to judge configs by instead of training; None: train.
    """

    settings: TuneSettings
    space: Space
    base: RunConfig
    config: Path | None
    overrides: tuple[str, ...]
    folder: Path
    objective: str | None = None

    @property
    def label(self) -> str:
        """What trials are judged by, for people."""
        return "objective" if self.objective else self.settings.metric

    @property
    def min_updates(self) -> int:
        """Updates that every trial gets before it may be stopped."""
        return self.settings.early_stopping.min_updates or max(1, self.base.run.updates // 6)

    def load(self, point: Mapping[str, Any], *extra: str) -> RunConfig:
        """The config of a trial.

        Raises:
            ConfigError: the point is not valid, or the config file is not what it was.
        """
        return load_config(self.config, self.overrides_of(point, *extra))

    def overrides_of(self, point: Mapping[str, Any], *extra: str) -> list[str]:
        """The overrides of a trial, for `cacherl train`."""
        return [*self.overrides, *as_overrides(point), *extra]


def load_settings(path: Path | None, changes: Mapping[str, Any], axes: Mapping[str, Any]) -> TuneSettings:
    """The settings of a YAML file with changes (None: not changed) and axes of the command line.

    Raises:
        ConfigError: unreadable file, unknown key or malformed value; names each.
    """
    raw: Any = {}
    if path is not None:
        try:
            raw = OmegaConf.load(path)
        except FileNotFoundError:
            raise ConfigError(f"--space: no file at {path}") from None
        except (OmegaConfBaseException, YAMLError, OSError) as error:
            raise ConfigError(f"--space {path}: {error}") from error
        if not isinstance(raw, DictConfig):
            raise ConfigError(f"--space {path}: must be a mapping, got a list")
        raw = OmegaConf.to_container(raw, resolve=True)
    raw |= {key: value for key, value in changes.items() if value is not None}
    try:
        settings = TuneSettings.model_validate(raw)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, p['loc']))}: {p['msg']} (got {p['input']!r})" for p in error.errors())
        raise ConfigError("search settings: " + "; ".join(problems)) from None
    return settings.model_copy(update={"space": {**settings.space, **axes}})


def check_search(
    settings: TuneSettings, *, config: Path | None, overrides: Sequence[str], name: str, objective: str | None = None
) -> Search:
    """Everything that can be known before the first trial.

    Raises:
        ConfigError: names the key that does not exist, the value that it cannot have, or the packages that are missing.
    """
    require_packages()
    base = load_config(config, overrides)
    if base.replay.namespace is not None:
        raise ConfigError(f"replay.namespace {base.replay.namespace!r}: trials would share a pool; leave it out while tuning")
    least = settings.early_stopping.min_updates
    if least is not None and least > base.run.updates:
        raise ConfigError(
            f"early_stopping.min_updates {least} must not exceed run.updates {base.run.updates}; lower it, or leave it out"
        )
    try:
        lookup(settings.metric)
    except KeyError:
        raise ConfigError(f"metric: {settings.metric!r} is no metric of a run; cacherl/metrics.py has the list") from None
    search = Search(
        settings=settings,
        space=parse_space(settings.space, base),
        base=base,
        config=config and config.resolve(),
        overrides=tuple(overrides),
        folder=load_config(config, [*overrides, *as_overrides({"run.name": name})]).run_dir.resolve(),
        objective=objective,
    )
    if objective is not None:
        load_objective(objective)
    if settings.search == "grid":
        search.space.require_lists()
    _check_points(search)
    return search


def _check_points(search: Search) -> None:
    """Each value by itself, so that an error names its field; then the combinations, for values that contradict each other."""
    axes = search.space.axes
    for key, axis in axes.items():
        for value in axis.extremes:
            _check_value(search, key, value)
    combinations = itertools.product(*(axis.extremes for axis in axes.values()))
    if search.settings.search == "bayes" and math.prod(len(axis.extremes) for axis in axes.values()) > _MOST_COMBINATIONS:
        return
    for values in combinations:
        point = dict(zip(axes, values, strict=True))
        try:
            search.load(point)
        except ConfigError as error:
            raise ConfigError(f"search space: with {' '.join(as_overrides(point))}: {error}") from None


def _check_value(search: Search, key: str, value: Any) -> None:
    """A value that only contradicts another key is left to the combinations: another axis may vary that key."""
    try:
        search.load({key: value})
    except ConfigError as error:
        if any(line.startswith((f"{key}:", f"{key}.")) or "unknown key" in line for line in str(error).splitlines()):
            raise ConfigError(f"search space: {error}") from None


def require_packages() -> None:
    """
    Raises:
        ConfigError: a package of the extra 'tune' is not installed.
    """
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"`cacherl tune` needs {', '.join(missing)}: pip install '.[tune]' in the project's folder")


def load_objective(path: str) -> Callable[[RunConfig], Any]:
    """The function 'package.module:name'.

    Raises:
        ConfigError: it cannot be loaded.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon:
        raise ConfigError(f"--objective must be a path 'package.module:name', got {path!r}")
    try:
        function: Callable[[RunConfig], Any] = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise ConfigError(f"--objective {path!r} cannot be loaded: {error!r}") from error
    return function
