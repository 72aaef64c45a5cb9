"""What a run takes along to the other nodes of its cluster: the user's own code, and passwords."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from cacherl.config import RunConfig
from cacherl.secrets import Secrets
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


def secrets_to_ship(config: RunConfig, *, judge: bool) -> Secrets:
    """The variables that `replay.password_env` and, for who scores with a `judge`, `reward.judge.api_key_env` name.

    One that this process has not is left to the nodes.
    """
    names = (config.replay.password_env, config.reward.judge.api_key_env if judge else None)
    return Secrets({name: os.environ[name] for name in names if name is not None and name in os.environ})


def _everywhere(root: Path) -> bool:
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    ours = root.parent == _PROJECT and root.name in _OURS
    shipped = any(part.startswith(_SHIPPED) for part in root.parts)
    return ours or shipped or any(root.is_relative_to(folder) for folder in installed)
