"""`load_source`: from `env.name` to a `TaskSource`, for the project's families and for anyone's own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cacherl.config import EnvSection
from cacherl.errors import ConfigError
from envs.base import TRAIN, VAL, TaskSource
from envs.data.family import DataFamily
from envs.interface import require
from envs.mix import MixedSource, Part, mixture, parts_of
from envs.reports.family import ReportsFamily
from envs.research.family import ResearchFamily
from envs.settings import read_settings
from envs.simulator import Family
from envs.source import SimulatedSource
from envs.trip.family import TripFamily

#: What `env.name` may be, besides a dotted path: a `Family` class, or a callable from the section to a `TaskSource`.
#: The named parameters of either, after the section, are its `env.settings`.
FAMILIES: dict[str, Callable[..., Any]] = {
    "data": DataFamily,
    "reports": ReportsFamily,
    "research": ResearchFamily,
    "trip": TripFamily,
}


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
        ConfigError: no such family, module or name; a setting it does not have; something that is not what it should be.
    """
    weights = mixture(section.name)
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


def module_roots(name: str) -> list[Path]:
    """The package folders and the files that the dotted paths in an `env.name` lead to; none for the project's families."""
    roots = [_root(part) for part in mixture(name) if part not in FAMILIES]
    return [root for root in roots if root is not None]


def _root(name: str) -> Path | None:
    spec = importlib.util.find_spec(name.partition(":")[0].partition(".")[0])
    if spec is None or spec.origin is None:  # a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def own_sources(name: str) -> list[Path]:
    """The Python files that the environment of a dotted path consists of; none for the project's families."""
    return [file for root in module_roots(name) for file in (sorted(root.rglob("*.py")) if root.is_dir() else [root])]


def _target(name: str) -> Callable[..., Any]:
    if name in FAMILIES:
        return FAMILIES[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"env.name must be one of {', '.join(FAMILIES)} or a path 'package.module:Name', got {name!r}")
    module = _module(name, module_name)
    target = getattr(module, attribute, None)
    if not callable(target):
        close = get_close_matches(attribute, vars(module)) or [one for one in vars(module) if not one.startswith("_")][-5:]
        raise ConfigError(f"env.name {name!r}: {module.__file__} has no class or function {attribute!r}; it has {close}")
    return target  # type: ignore[no-any-return]


def _module(name: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            top = error.name.partition(".")[0]
            raise ConfigError(
                f"env.name {name!r}: no module named {error.name!r} in {Path.cwd()} or on PYTHONPATH; run from the folder "
                f"that holds {top}.py or {top}/, or name that folder in PYTHONPATH"
            ) from None
        raise ConfigError(f"env.name {name!r}: {module_name} imports {error.name!r}, which is not installed") from error
    except Exception as error:
        raise ConfigError(f"env.name {name!r}: importing {module_name} raised {type(error).__name__}: {error}") from error
