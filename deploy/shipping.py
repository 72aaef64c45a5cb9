"""What a run takes along to the other nodes of its cluster: the user's own environment."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from envs.registry import module_root

_PROJECT = Path(__file__).resolve().parent.parent
_OURS = frozenset({"actors", "cacherl", "deploy", "envs", "learner", "replay_service", "rewards"})
#: Ray names the folders into which it unpacks what was shipped before.
_SHIPPED = "_ray_pkg_"


def modules_to_ship(env_name: str) -> list[str]:
    """The package or the single-file module of `env.name`, for Ray's `py_modules`.

    Empty where every node has it already: a family of the project, an installed package, or part of the working directory
    that `ray job submit` has brought.
    """
    root = module_root(env_name)
    if root is None:
        return []
    root = root.resolve()
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    ours = root.parent == _PROJECT and root.name in _OURS
    if ours or any(root.is_relative_to(folder) for folder in installed) or any(p.startswith(_SHIPPED) for p in root.parts):
        return []
    return [str(root)]
