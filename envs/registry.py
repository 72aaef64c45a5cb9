"""`load_source`: from `env.name` to a `TaskSource`, for the project's families and for anyone's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cacherl.environment_settings import EnvSection, SandboxSection
from cacherl.errors import ConfigError
from envs.adapters.agentdojo.source import dojo_source
from envs.adapters.bfcl.source import bfcl_source
from envs.base import TRAIN, VAL, TaskSource
from envs.code.family import CodeFamily
from envs.data.family import DataFamily
from envs.dotted import load_dotted
from envs.interface import require
from envs.mix import MixedSource, Part, mixture, parts_of
from envs.reports.family import ReportsFamily
from envs.research.family import ResearchFamily
from envs.sandbox.sandbox import open_sandbox
from envs.settings import read_settings
from envs.simulator import Family
from envs.source import SimulatedSource
from envs.trip.family import TripFamily

#: What `env.name` may be, besides a dotted path: a `Family` class, or a callable from the section to a `TaskSource`.
#: The named parameters of either, after the section, are its `env.settings`.
FAMILIES: dict[str, Callable[..., Any]] = {
    "code": lambda section: SimulatedSource(CodeFamily(open_sandbox(section.sandbox)), section),
    "data": DataFamily,
    "reports": ReportsFamily,
    "research": ResearchFamily,
    "trip": TripFamily,
}
#: Public suites, which need packages of their own.
SUITES: dict[str, Callable[..., Any]] = {"agentdojo": dojo_source, "bfcl": bfcl_source}
#: Those of the families that run no code, so that `env.sandbox` would have no effect.
PURE = frozenset({"data", "reports", "research", "trip"})


def load_source(section: EnvSection) -> TaskSource:
    """The source that `section.name` names, with levels to train and to evaluate on.

    Raises:
        ConfigError: as `build_source`; a level of `section.levels` that the environment lacks in 'train' or 'val'.
    """
    source = build_source(section)
    for split in (TRAIN, VAL):
        levels = source.levels(split)
        if missing := [level for level in training_levels(source, section) if level not in levels]:
            use = "trained" if split == TRAIN else "evaluated"
            raise ConfigError(
                f"env.levels: {source.family!r} has levels {list(levels)} in split {split!r}, which is {use} on, got {missing}"
            )
    if not source.levels(TRAIN):
        raise ConfigError(f"env.name {section.name!r}: it has no levels in split {TRAIN!r}, so there is nothing to train on")
    for family, part in parts_of(source).items():
        if not any(level in part.source.levels(TRAIN) for level in training_levels(source, section)):
            raise ConfigError(f"env.levels: {family!r} has none of them in split {TRAIN!r}; leave it out of the mix")
    return source


def training_levels(source: TaskSource, section: EnvSection) -> tuple[int, ...]:
    """The levels that a run plays: `env.levels`, or all of the split 'train' where that is null."""
    return source.levels(TRAIN) if section.levels is None else section.levels


def build_source(section: EnvSection) -> TaskSource:
    """The source that `section.name` names: a family, or 'package.module:Name' of a `Family` class or of a callable that
    takes the section and returns a `TaskSource`; or a mix of such, in which `section.settings` holds the settings of each.

    Raises:
        ConfigError: no such family, module or name; a setting it does not have; something that is not what it should be;
            sandbox settings where no code runs; no sandbox where it does.
    """
    weights = mixture(section.name)
    if weights.keys() <= PURE | SUITES.keys() and section.sandbox != SandboxSection():
        raise ConfigError(f"env.sandbox: family {section.name!r} runs no code, so leave these settings out")
    if len(weights) == 1:
        return _build_one(section.model_copy(update={"name": next(iter(weights))}))
    if foreign := section.settings.keys() - weights.keys():
        raise ConfigError(f"env.settings: in a mix it has one section for each of {', '.join(weights)}, got {sorted(foreign)}")
    sections = {name: section.model_copy(update={"name": name, "settings": section.settings.get(name, {})}) for name in weights}
    return MixedSource({name: Part(source=_build_one(one), weight=weights[name]) for name, one in sections.items()})


def _build_one(section: EnvSection) -> TaskSource:
    where = f"env.name {section.name!r}"
    target = _target(section.name)
    takes_section = not (isinstance(target, type) and not hasattr(target, "make_env"))
    settings = read_settings(target, section.settings, skip=int(takes_section))
    try:
        made = target(section, **settings) if takes_section else target(**settings)
    except ConfigError:
        raise
    except Exception as error:
        shown = f" with env.settings {dict(section.settings)}" if section.settings else ""
        raise ConfigError(f"{where}{shown}: {type(error).__name__}: {error}") from error
    if takes_section:
        require(made, TaskSource, where)
        source: TaskSource = made
        return source
    require(made, Family, where)
    return SimulatedSource(made, section)


def _target(name: str) -> Callable[..., Any]:
    known = FAMILIES | SUITES
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigError(f"env.name must be one of {', '.join(known)} or a path 'package.module:Name', got {name!r}")
    return load_dotted(name)
