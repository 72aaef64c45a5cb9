"""RunDirectory: everything that a run leaves behind, under one folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from cacherl.config import RunConfig
from cacherl.errors import ConfigError


class RunDirectory:
    """`<run.dir>/<run.name>`: config.yaml, metrics.jsonl, summary.json, report.html, logs/, tensorboard/, model/, replay/.

    Raises:
        ConfigError: the folder cannot be written, or holds an earlier run and run.if_exists is 'error'.
    """

    def __init__(self, config: RunConfig) -> None:
        self.path = config.run_dir.resolve()
        if (self.path / "config.yaml").exists():
            if config.run.if_exists == "error":
                raise ConfigError(
                    f"run.name: {config.run_dir} holds an earlier run; take another name, or run.if_exists=replace to delete it"
                )
            shutil.rmtree(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_text("config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        except OSError as error:
            raise ConfigError(f"run.dir: {self.path} cannot be written ({error})") from error

    @property
    def logs(self) -> Path:
        """Folder of the log files of the driver, the actors, the learner ranks and the replay server."""
        return self.path / "logs"

    @property
    def model(self) -> Path:
        """The Hugging Face folder that the run starts from, if it was built on the spot."""
        return self.path / "model"

    @property
    def final_model(self) -> Path:
        """The trained model as a Hugging Face folder."""
        return self.path / "final_model"

    @property
    def replay(self) -> Path:
        """Data folder of the embedded replay server."""
        return self.path / "replay"

    def write_json(self, name: str, value: Any) -> None:
        """Write `value` to the file `name`, whole or not at all."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write `text` to the file `name`, whole or not at all."""
        target = self.path / name
        partial = target.with_name(f".{name}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
