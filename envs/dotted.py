"""Environments in somebody's own package, named by a dotted path: 'package.module:Name'."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cacherl.errors import ConfigError
from envs.mix import mixture


def load_dotted(name: str) -> Callable[..., Any]:
    """The class or function that `name` leads to.

    Raises:
        ConfigError: no such module, one that cannot be imported, or no such name in it; says what to do.
    """
    module_name, _, attribute = name.partition(":")
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


def module_roots(name: str) -> list[Path]:
    """The package folders and the files that the dotted paths in an `env.name` lead to; none for the project's families."""
    roots = [_root(part) for part in mixture(name) if ":" in part]
    return [root for root in roots if root is not None]


def _root(name: str) -> Path | None:
    spec = importlib.util.find_spec(name.partition(":")[0].partition(".")[0])
    if spec is None or spec.origin is None:  # a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def own_sources(name: str) -> list[Path]:
    """The Python files that the environment of a dotted path consists of; none for the project's families."""
    return [file for root in module_roots(name) for file in (sorted(root.rglob("*.py")) if root.is_dir() else [root])]
