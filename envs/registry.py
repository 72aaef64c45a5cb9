"""`load_source`: from `env.name` to a `TaskSource`, for the project's families and for anyone's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from cacherl.config import EnvSection, SandboxSection
from cacherl.errors import ConfigError
from envs.adapters.agentdojo.source import dojo_source
from envs.adapters.bfcl.source import bfcl_source
from envs.base import TRAIN, TaskSource
from envs.code.family import CodeFamily
from envs.data.family import DataFamily
from envs.research.family import ResearchFamily
from envs.sandbox.sandbox import open_sandbox
from envs.source import SimulatedSource
from envs.trip.family import TripFamily

#: What `env.name` may be, besides a dotted path.
FAMILIES: dict[str, Callable[[EnvSection], TaskSource]] = {
    "agentdojo": dojo_source,
    "bfcl": bfcl_source,
    "code": lambda section: SimulatedSource(CodeFamily(open_sandbox(section.sandbox)), section),
    "data": lambda section: SimulatedSource(DataFamily(), section),
    "research": lambda section: SimulatedSource(ResearchFamily(), section),
    "trip": lambda section: SimulatedSource(TripFamily(), section),
}
#: Those of them that run no code, so that `env.sandbox` would have no effect.
PURE = ("data", "research", "trip")


def load_source(section: EnvSection) -> TaskSource:
    """The source that `section.name` names: a family, or 'package.module:Name' of a callable that takes an `EnvSection`.

    Raises:
        ConfigError: no such family, module or name; a level that the family does not have; sandbox settings for a family that
            runs no code; no sandbox for one that does.
    """
    if section.name in PURE and section.sandbox != SandboxSection():
        raise ConfigError(f"env.sandbox: family {section.name!r} runs no code, so leave these settings out")
    source = _factory(section.name)(section)
    levels = source.levels(TRAIN)
    if missing := [level for level in section.levels if level not in levels]:
        raise ConfigError(f"env.levels: family {source.family!r} has levels {list(levels)}, got {missing}")
    return source


def _factory(name: str) -> Callable[[EnvSection], TaskSource]:
    if name in FAMILIES:
        return FAMILIES[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"env.name must be one of {', '.join(FAMILIES)} or a path 'package.module:Name', got {name!r}")
    try:
        factory: Callable[[EnvSection], TaskSource] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"env.name {name!r} cannot be loaded: {error}") from error
    return factory
