"""RunDirectory: everything that a run leaves behind, under one folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from cacherl.metrics import drop_later_records
from deploy.alarms import ALARMS_FILE
from deploy.resume import refuse_changes
from deploy.run_record import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE, run_file

_IDENTITY = "identity.json"
_SCORED = "scored.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What stays the same over all sessions of a run.

    Attributes:
        run_id: prefix of its groups' and batches' ids.
        replay_namespace: of its pool.
    """

    run_id: str
    replay_namespace: str


def read_identity(folder: Path) -> RunIdentity:
    """The identity of the run in `folder`.

    Raises:
        ConfigError: there is none.
    """
    return RunIdentity(**json.loads(run_file(folder, _IDENTITY).read_text("utf-8")))


def note_reward(folder: Path, fingerprint: str | None) -> None:
    """Note in a run's folder which reward all groups of its pool have; None: they need not have the same."""
    _write_text(folder / _SCORED, json.dumps({"fingerprint": fingerprint}) + "\n")


class RunDirectory:
    """`<run.dir>/<run.name>`: config.yaml, metrics.jsonl, summary.json, report.html, logs/, tensorboard/, model/, replay/,
    checkpoints/.

    Attributes:
        resumed: the folder holds an earlier run, which is to be continued.

    Raises:
        ConfigError: the folder cannot be written, holds an earlier run and run.if_exists is 'error', or holds one that cannot
            be resumed with these settings.
    """

    def __init__(self, config: RunConfig) -> None:
        self.path = config.run_dir.resolve()
        self.checkpoints = config.checkpoint_dir.resolve()
        earlier = (self.path / CONFIG_FILE).exists()
        self.resumed = earlier and config.run.if_exists == "resume"
        if self.resumed:
            refuse_changes(self.path / CONFIG_FILE, config)
        elif earlier and config.run.if_exists == "error":
            raise ConfigError(
                f"run.name: {config.run_dir} holds an earlier run; take another name, run.if_exists=replace to delete it, or "
                "run.if_exists=resume to go on with it"
            )
        try:
            if earlier and not self.resumed:
                shutil.rmtree(self.path)
                shutil.rmtree(self.checkpoints, ignore_errors=True)
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_text(CONFIG_FILE, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
            (self.path / SUMMARY_FILE).unlink(missing_ok=True)  # it is that of an earlier session
        except OSError as error:
            raise ConfigError(f"run.dir: {self.path} cannot be written ({error})") from error

    @property
    def logs(self) -> Path:
        """Folder of the log files of the driver, the actors and the learner ranks; the replay server's is in `replay`."""
        return self.path / "logs"

    @property
    def model(self) -> Path:
        """The Hugging Face folder that the run starts from, if it was built on the spot."""
        return self.path / "model"

    @property
    def start_model(self) -> Path:
        """The model that reinforcement learning begins with, if it comes out of a warm start."""
        return self.path / "start_model"

    @property
    def final_model(self) -> Path:
        """The trained model as a Hugging Face folder."""
        return self.path / "final_model"

    @property
    def metrics(self) -> Path:
        """The file of metrics."""
        return self.path / METRICS_FILE

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's events."""
        return self.path / "tensorboard"

    @property
    def replay(self) -> Path:
        """Data folder of the embedded replay server."""
        return self.path / "replay"

    def identity(self, fresh: RunIdentity) -> RunIdentity:
        """The run's identity: that of the run which is resumed, else `fresh`, which is written down."""
        if self.resumed and (self.path / _IDENTITY).is_file():
            return read_identity(self.path)
        self.write_json(_IDENTITY, asdict(fresh))
        return fresh

    @property
    def scored_with(self) -> str | None:
        """Fingerprint of the reward that all groups of the run's pool have; None: unknown, or not all have the same."""
        path = self.path / _SCORED
        found = json.loads(path.read_text("utf-8"))["fingerprint"] if path.is_file() else None
        return None if found is None else str(found)

    def forget_after(self, version: int | None) -> None:
        """Remove what an earlier session recorded of updates after `version`, which will be made again; None: of all.

        The sinks of metrics do the same with their own files.
        """
        alarms = self.path / ALARMS_FILE
        if version is None:
            shutil.rmtree(self.tensorboard, ignore_errors=True)
            for file in (self.metrics, alarms):
                file.unlink(missing_ok=True)
        elif alarms.exists():
            drop_later_records(alarms, "update", version)

    def write_json(self, name: str, value: Any) -> None:
        """Write `value` to the file `name`, whole or not at all."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write `text` to the file `name`, whole or not at all."""
        _write_text(self.path / name, text)


def _write_text(target: Path, text: str) -> None:
    partial = target.with_name(f".{target.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)


@contextlib.contextmanager
def sole_session(config: RunConfig) -> Iterator[None]:
    """Hold the run's folder; the kernel lets go of it when the process ends, however it does.

    Raises:
        ConfigError: another process is running this run, or the folder cannot be made.
    """
    with held(config.run_dir) as alone:
        if not alone:
            raise ConfigError(f"run.name: {config.run_dir} is being run by another process; wait for it or stop it")
        yield


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold a run's folder unless another process does; whether it is held now, so that nobody else runs the run.

    Raises:
        ConfigError: the folder cannot be made.
    """
    path = folder.expanduser().resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("a")
    except OSError as error:
        raise ConfigError(f"run.dir: {folder} cannot be written ({error})") from error
    with lock:
        alone = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            alone = False
        yield alone
