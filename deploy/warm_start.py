"""The start model of a run: built or given, then warm-started on demonstrations, cached by everything that it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from actors.briefing import briefed_chat
from actors.demonstrations import demonstrate
from actors.episode import EpisodeLimits
from actors.policy import Sampling
from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from cacherl.trajectory import Trajectory
from deploy.tasks import draw_task
from deploy.tiny_model import build_tiny_model
from envs.agents import TeacherAgent
from envs.base import TRAIN, TaskSource
from envs.registry import load_source
from learner.group import LearnerGroup
from rewards.composer import Composer

_PROJECT = Path(__file__).resolve().parent.parent
#: Source files whose change makes an earlier warm start obsolete.
_SOURCES = ("cacherl/trajectory.py", "envs/**/*.py", "learner/*.py", "actors/*.py", "deploy/tiny_model.py", "deploy/tasks.py")


def base_model(config: RunConfig, source: TaskSource, directory: Path) -> Path:
    """The Hugging Face folder before any training: `model.path`, or a tiny model built in `directory`.

    Raises:
        ConfigError: model.path is not such a folder.
    """
    if config.model.path is None:
        build_tiny_model(directory, source, config.model.tiny, max_length=config.model.max_length, seed=config.run.seed)
        return directory
    path = config.model.path.expanduser().resolve()
    if not (path / "config.json").is_file():
        raise ConfigError(f"model.path: {path} is not a Hugging Face model folder (no config.json in it)")
    return path


class WarmStart:
    """Supervised training before the first update, at most once for each setting.

    Args:
        base: folder of the model before the warm start.
    """

    def __init__(self, config: RunConfig, source: TaskSource, base: Path) -> None:
        self._config = config
        self._source = source
        self._base = base
        self._cached = config.warm_start.cache_dir.expanduser().resolve() / "warm_start" / self._key()

    @property
    def needed(self) -> bool:
        """There is something to train, and no cached result of it."""
        return self._config.warm_start.updates > 0 and not self._cached.exists()

    @property
    def model(self) -> Path:
        """Folder that the learner and the engines load: the cached result where there is one."""
        return self._cached if self._config.warm_start.updates and self._cached.exists() else self._base

    async def train(self, learner: LearnerGroup, on_progress: Callable[[int, float], None]) -> None:
        """Warm-start the learner, which has loaded `base`, and cache the result.

        Args:
            on_progress: called with (updates done, loss).
        """
        demonstrations = await self._demonstrations()
        await learner.warm_start(demonstrations, on_progress)
        self._cached.parent.mkdir(parents=True, exist_ok=True)
        await learner.save(self._cached)

    async def _demonstrations(self) -> list[Trajectory]:
        from transformers import AutoTokenizer

        config, section = self._config, self._config.warm_start
        tasks = [draw_task(self._source, config, split=TRAIN, number=-1 - index) for index in range(section.demonstrations)]
        limits = EpisodeLimits(
            max_turns=config.env.max_turns, max_length=config.model.max_length, timeout_s=config.rollout.episode_timeout_s
        )
        patient = load_source(config.env.model_copy(update={"latency_s": 0.0}))  # a teacher waits for no simulated tool
        return await demonstrate(
            tasks,
            lambda index: TeacherAgent(patient, sloppiness=section.sloppiness, seed=index),
            source=patient,
            chat=briefed_chat(AutoTokenizer.from_pretrained(self._base), config, patient),
            scorer=Composer.from_config(config.reward),
            limits=limits,
            sampling=Sampling(temperature=config.rollout.temperature, max_new_tokens=config.rollout.max_new_tokens),
        )

    def _key(self) -> str:
        """Hash of the settings, the model's files and the code that decide the result."""
        config = self._config
        settings = config.model_dump(
            mode="json",
            include={"model", "env", "rollout", "warm_start", "reward", "run", "learner"},
            exclude={
                "run": {"name", "dir", "updates", "stop_at_success", "deadline_s", "if_exists"},
                "warm_start": {"cache_dir"},
                "learner": {"lr", "batch_size", "epochs", "update_deadline_s", "start_deadline_s", "threads"},
            },
        )
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        files = sorted(path for pattern in _SOURCES for path in _PROJECT.glob(pattern))
        files += sorted(path for path in self._base.iterdir() if path.is_file())
        for path in files:
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()[:32]
