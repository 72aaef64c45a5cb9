"""A run's folder: created once, replaced only on request, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cacherl.config import RunConfig, load_config
from cacherl.errors import ConfigError
from deploy.run_dir import RunDirectory, note_reward


def config(tmp_path: Path, *overrides: str) -> RunConfig:
    return load_config(None, [f"run.dir={tmp_path}/runs", "run.name=a", *overrides])


def test_a_fresh_folder_holds_the_whole_config(tmp_path: Path) -> None:
    settings = config(tmp_path, "learner.lr=3e-5", "model.path=/m")
    directory = RunDirectory(settings)
    assert directory.path == tmp_path / "runs" / "a"
    assert load_config(directory.path / "config.yaml") == settings
    assert [directory.logs.name, directory.model.name, directory.final_model.name, directory.replay.name] == [
        "logs",
        "model",
        "final_model",
        "replay",
    ]
    assert {path.parent for path in (directory.logs, directory.model, directory.final_model, directory.replay)} == {
        directory.path
    }


def test_an_earlier_run_is_kept(tmp_path: Path) -> None:
    first = RunDirectory(config(tmp_path, "run.seed=1"))
    with pytest.raises(ConfigError, match=r"^run\.name: .*/runs/a holds an earlier run; .*run\.if_exists=replace"):
        RunDirectory(config(tmp_path, "run.seed=2"))
    assert load_config(first.path / "config.yaml").run.seed == 1


def test_an_earlier_run_is_replaced_on_request(tmp_path: Path) -> None:
    first = RunDirectory(config(tmp_path))
    first.logs.mkdir()
    first.write_text("metrics.jsonl", "old")
    second = RunDirectory(config(tmp_path, "run.if_exists=replace"))
    assert [path.name for path in second.path.iterdir()] == ["config.yaml"]


def test_a_folder_that_is_no_run_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "thesis.txt").write_text("mine")
    directory = RunDirectory(config(tmp_path, "run.if_exists=replace"))
    assert (directory.path / "thesis.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_a_setting_to_change(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"^run\.dir: .*/runs/a cannot be written \(.*Not a directory"):
        RunDirectory(config(tmp_path))


def test_files_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(config(tmp_path))
    directory.write_json("summary.json", {"status": "succeeded", "value": 0.5})
    assert json.loads((directory.path / "summary.json").read_text()) == {"status": "succeeded", "value": 0.5}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            directory.write_text("summary.json", "half of")
    assert json.loads((directory.path / "summary.json").read_text())["status"] == "succeeded"
    with pytest.raises(TypeError, match="not JSON serializable"):
        directory.write_json("summary.json", {"value": object()})
    assert json.loads((directory.path / "summary.json").read_text())["status"] == "succeeded"


def test_a_relative_folder_stays_the_same_when_the_process_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(load_config(None, ["run.name=b"]))
    os.chdir("/")
    assert directory.path == tmp_path / "runs" / "b"
    assert (directory.path / "config.yaml").is_file()


def test_the_reward_that_the_pool_has_is_remembered_and_may_be_edited(tmp_path: Path) -> None:
    first = RunDirectory(config(tmp_path, "reward.tool_use=0.05"))
    assert first.scored_with is None
    note_reward(first.path, "abc")
    again = RunDirectory(config(tmp_path, "reward.tool_use=0.02", "run.if_exists=resume"))
    assert again.scored_with == "abc"
