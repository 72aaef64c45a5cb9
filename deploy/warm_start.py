"""The start model of a run: built or given, then warm-started on demonstrations, cached by everything that it depends on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from deploy.demonstrations import load_demonstrations
from deploy.tiny_model import build_tiny_model
from envs.base import TaskSource
from envs.dotted import own_sources
from learner.group import LearnerGroup

_PROJECT = Path(__file__).resolve().parent.parent
#: Source files whose change makes an earlier warm start obsolete.
_SOURCES = (
    "cacherl/trajectory.py",
    "envs/**/*.py",
    "learner/*.py",
    "actors/*.py",
    *(f"deploy/{name}.py" for name in ("demonstrations", "tasks", "tiny_model")),
)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def require_inputs(config: RunConfig) -> None:
    """Look for the files that a run begins with, before an earlier run makes room for it.

    Raises:
        ConfigError: model.path is not a Hugging Face folder, or warm_start.path or warm_start.prefill names no file.
    """
    model, warm_start = config.model.path, config.warm_start
    if model is not None and not (model.expanduser() / "config.json").is_file():
        raise ConfigError(f"model.path: {model} is not a Hugging Face model folder (no config.json in it)")
    prefill = None if config.run.if_exists == "resume" else warm_start.prefill  # a run that goes on has its pool already
    for key, path in (("path", warm_start.path), ("prefill", prefill)):
        if path is not None and not path.expanduser().is_file():
            raise ConfigError(f"warm_start.{key}: there is no file {path}")


def base_model(config: RunConfig, source: TaskSource, directory: Path) -> Path:
    """The Hugging Face folder before any training: `model.path`, or a tiny model built in `directory`."""
    if config.model.path is None:
        build_tiny_model(directory, source, config.model.tiny, max_length=config.model.max_length, seed=config.run.seed)
        return directory
    return config.model.path.expanduser().resolve()


class WarmStart:
    """Supervised training before the first update, at most once for each setting.

    Args:
        base: folder of the model before the warm start.
        kept: folder in which the run keeps the result, so that it can be resumed without the cache; None: it does not.
    """

    def __init__(self, config: RunConfig, source: TaskSource, base: Path, *, kept: Path | None = None) -> None:
        self._config = config
        self._source = source
        self._base = base
        self._kept = kept
        self._cached = config.warm_start.cache_dir.expanduser().resolve() / "warm_start" / self._key()

    @property
    def needed(self) -> bool:
        """There is something to train, and no cached result of it."""
        return self._config.warm_start.updates > 0 and not self._done()

    @property
    def model(self) -> Path:
        """Folder that the learner and the engines load: the result where there is one."""
        if not self._config.warm_start.updates or not self._done():
            return self._base
        return self._cached if self._kept is None else self._keep(self._kept)

    def _done(self) -> bool:
        return self._cached.exists() or (self._kept is not None and self._kept.exists())

    def _keep(self, kept: Path) -> Path:
        """The run's own copy of the result: hard links, where the file system allows them."""
        if not kept.exists():
            partial = kept.with_name(f".{kept.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(self._cached, partial, copy_function=_link_or_copy)
            partial.rename(kept)
        return kept

    async def train(self, learner: LearnerGroup, on_progress: Callable[[int, float], None]) -> None:
        """Warm-start the learner, which has loaded `base`, and cache the result.

        Args:
            on_progress: called with (updates done, loss).
        """
        demonstrations = await load_demonstrations(self._config, self._source, self._base)
        await learner.warm_start(demonstrations, on_progress)
        self._cached.parent.mkdir(parents=True, exist_ok=True)
        await learner.save(self._cached)

    def _key(self) -> str:
        """Hash of the settings, the model's files and the code that decide the result."""
        config = self._config
        settings = config.model_dump(
            mode="json",
            include={"model", "env", "rollout", "warm_start", "run", "learner"},  # imitation does not look at the reward
            exclude={
                "run": {"name", "dir", "updates", "stop_at_success", "deadline_s", "if_exists"},
                "warm_start": {"cache_dir", "path", "prefill"},
                "learner": {"lr", "schedule", "batch_size", "epochs", "update_deadline_s", "start_deadline_s", "threads"},
            },
        )
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        files = sorted(path for pattern in _SOURCES for path in _PROJECT.glob(pattern))
        files += own_sources(config.env.name)
        files += sorted(path for path in self._base.iterdir() if path.is_file())
        if config.warm_start.path is not None:
            files.append(config.warm_start.path.expanduser())
        for path in files:
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()[:32]
