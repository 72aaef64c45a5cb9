"""What a run takes along to the other nodes of its cluster: the user's own code."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from cacherl.config import RunConfig
from envs.dotted import module_roots

_PROJECT = Path(__file__).resolve().parent.parent
_OURS = frozenset({"actors", "cacherl", "deploy", "envs", "learner", "replay_service", "rewards"})
#: Ray names the folders into which it unpacks what was shipped before.
_SHIPPED = "_ray_pkg_"


def modules_to_ship(config: RunConfig) -> list[str]:
    """The packages and single-file modules of `env.name`, `reward.components` and `replay.priority`, for Ray's `py_modules`.

    Empty where every node has them already: families of the project, installed packages, or parts of the working directory
    that `ray job submit` has brought.
    """
    functions = [part.path for part in config.reward.components]
    functions += [config.replay.priority] if "." in config.replay.priority else []
    names = [config.env.name, *(":".join(function.rsplit(".", 1)) for function in functions)]
    roots = [path.resolve() for name in names for path in module_roots(name)]
    return [str(root) for root in dict.fromkeys(roots) if not _everywhere(root)]


def _everywhere(root: Path) -> bool:
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    ours = root.parent == _PROJECT and root.name in _OURS
    shipped = any(part.startswith(_SHIPPED) for part in root.parts)
    return ours or shipped or any(root.is_relative_to(folder) for folder in installed)
