"""The checkpoint folder: what is complete has its name, whatever happened before; what is kept; what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from cacherl.config import RunConfig, load_config
from cacherl.durable import WrittenFile, describe
from cacherl.errors import CheckpointError, ConfigError
from cacherl.stateful import collect, restore
from deploy.checkpoints import CheckpointStore, read_checkpoint
from deploy.cli import app
from deploy.export import export_policy
from deploy.resume import refuse_changes
from deploy.run_dir import RunDirectory, RunIdentity, sole_session
from learner.checkpoint import StateWriter, copied, read_state, take_reports, write_state
from support import PROJECT


def store(folder: Path, keep_last: int = 2, keep_best: int = 1) -> CheckpointStore:
    return CheckpointStore(folder, keep_last=keep_last, keep_best=keep_best)


def take(into: CheckpointStore, version: int, success: float | None = None) -> Path:
    staging = into.stage(version)
    (staging / "policy").mkdir()
    (staging / "policy" / "config.json").write_text(f'{{"version": {version}}}')
    (staging / "learner-0.pt").write_bytes(bytes([version]) * 1000)
    files = [describe(staging, "learner-0.pt"), describe(staging, "policy/config.json")]
    ledger = {"namespace": "pool"}
    return into.commit(staging, version, success=success, ledger=ledger, driver={"tasks": {"next": 7}}, files=files).folder


def versions(of: CheckpointStore) -> list[int]:
    return [checkpoint.version for checkpoint in of.complete()]


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    folder = take(store(tmp_path), 3, success=0.5)
    checkpoint = read_checkpoint(folder)
    assert folder.name == "step-00000003"
    assert (checkpoint.version, checkpoint.success, dict(checkpoint.ledger)) == (3, 0.5, {"namespace": "pool"})
    assert checkpoint.driver_state() == {"tasks": {"next": 7}}
    assert {file.name for file in checkpoint.files} == {"learner-0.pt", "policy/config.json", "driver.json"}
    assert checkpoint.nbytes == sum(path.stat().st_size for path in folder.rglob("*.*") if path.name != "manifest.json")


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = store(tmp_path, keep_last=2, keep_best=1)
    for version, success in ((10, 0.4), (20, 0.9), (30, None), (40, 0.6), (50, 0.9), (60, 0.7), (70, None)):
        take(checkpoints, version, success)
    assert versions(checkpoints) == [50, 60, 70]  # of two equals the newer one
    assert checkpoints.newest().version == 70
    assert checkpoints.best().version == 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000050", "step-00000060", "step-00000070"]


@pytest.mark.parametrize(
    ("keep_best", "success", "expected"), [(0, 1.0, False), (1, 0.9, False), (1, 0.95, True), (2, 0.1, True)]
)
def test_a_new_best_is_better_than_what_is_kept(tmp_path: Path, keep_best: int, success: float, expected: bool) -> None:
    checkpoints = store(tmp_path, keep_best=keep_best)
    take(checkpoints, 10, success=0.9)
    assert checkpoints.is_new_best(success) is expected


def test_what_was_not_finished_does_not_count_and_goes_with_the_next(tmp_path: Path) -> None:
    checkpoints = store(tmp_path)
    take(checkpoints, 10)
    (checkpoints.stage(20) / "learner-0.pt").write_bytes(b"half")
    assert versions(checkpoints) == [10]
    take(checkpoints, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000030"]


def test_a_version_taken_again_replaces_the_first(tmp_path: Path) -> None:
    checkpoints = store(tmp_path)
    take(checkpoints, 10, success=0.1)
    take(checkpoints, 10, success=0.2)
    assert [checkpoint.success for checkpoint in checkpoints.complete()] == [0.2]


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    folder = take(store(tmp_path), 10)
    entry = next(file for file in read_checkpoint(folder).files if file.name == "learner-0.pt")
    (folder / "learner-0.pt").write_bytes(bytes([11]) * 1000)
    with pytest.raises(CheckpointError, match=r"learner-0\.pt is damaged: 1000 bytes .* delete the folder step-00000010"):
        entry.verify(folder)
    (folder / "learner-0.pt").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"learner-0\.pt is missing or has not its 1000 bytes"):
        read_checkpoint(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="step-00000010 is not a complete checkpoint"):
        store(tmp_path).newest()
    take(store(tmp_path), 20)  # a run that goes on does not stumble over it
    assert versions(store(tmp_path)) == [20]
    assert entry == WrittenFile(name="learner-0.pt", nbytes=1000, crc32=entry.crc32)


_ENDLESS = """
import sys
from pathlib import Path
from test_checkpoints import store, take
checkpoints = store(Path(sys.argv[1]), keep_last=1, keep_best=0)
for version in range(1, 100000):
    take(checkpoints, version % 200)
    print(version, flush=True)
"""


def test_killed_at_any_moment_every_named_checkpoint_is_whole(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}:{PROJECT}/tests:{PROJECT}/tests/unit"}
    for attempt in range(4):
        command = [sys.executable, "-c", _ENDLESS, str(tmp_path / "c")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.05 + 0.013 * attempt)
            process.send_signal(signal.SIGKILL)
        complete = store(tmp_path / "c").complete()
        assert complete
        for checkpoint in complete:
            assert checkpoint.driver_state() == {"tasks": {"next": 7}}
            for file in checkpoint.files:
                file.verify(checkpoint.folder)


def settings(tmp_path: Path, *overrides: str) -> RunConfig:
    return load_config(None, [f"run.dir={tmp_path}", "run.name=a", *overrides])


def test_a_resumed_run_keeps_its_identity_and_its_folder(tmp_path: Path) -> None:
    first = RunDirectory(settings(tmp_path, "run.if_exists=resume"))
    assert not first.resumed  # there was nothing to resume, so it begins
    mine = first.identity(RunIdentity(run_id="a-1", replay_namespace="a-1"))
    first.write_text("metrics.jsonl", "old")
    first.write_json("summary.json", {"status": "succeeded"})
    second = RunDirectory(settings(tmp_path, "run.if_exists=resume", "run.updates=500"))
    assert second.resumed
    assert second.identity(RunIdentity(run_id="a-2", replay_namespace="a-2")) == mine
    assert second.metrics.read_text() == "old"
    assert not (second.path / "summary.json").exists()
    assert load_config(second.path / "config.yaml").run.updates == 500


def test_replacing_a_run_removes_its_checkpoints_wherever_they_are(tmp_path: Path) -> None:
    place = f"checkpoint.dir={tmp_path}/disk"
    RunDirectory(settings(tmp_path, place))
    take(store(tmp_path / "disk" / "a"), 10)
    take(store(tmp_path / "disk" / "other"), 10)
    RunDirectory(settings(tmp_path, place, "run.if_exists=replace"))
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["other"]


@pytest.mark.parametrize("change", ["run.updates=7", "eval.every=3", "eval.tasks=5", "learner.lr=1e-6", "actors.count=3"])
def test_settings_that_may_change(tmp_path: Path, change: str) -> None:
    RunDirectory(settings(tmp_path))
    refuse_changes(tmp_path / "a" / "config.yaml", settings(tmp_path, change))


@pytest.mark.parametrize(
    "change",
    [
        "run.seed=1",
        "model.max_length=128",
        "env.levels=[1]",
        "learner.zero_stage=2",
        "rollout.group_size=4",
        "checkpoint.dir=/d",
    ],
)
def test_settings_that_may_not_change(tmp_path: Path, change: str) -> None:
    RunDirectory(settings(tmp_path, "kl.coef=0.1"))
    key, _, value = change.partition("=")
    with pytest.raises(ConfigError, match=rf"(?s)resume cannot change.*\n  {key}: .* in .*config\.yaml, now .*{value[-2:]}"):
        RunDirectory(settings(tmp_path, "kl.coef=0.1", change, "run.if_exists=resume"))
    with pytest.raises(ConfigError, match=r"kl\.coef: 0\.1 in .* now 0\.0 \(0 keeps no reference model\)"):
        refuse_changes(tmp_path / "a" / "config.yaml", settings(tmp_path))


def test_a_run_has_one_process(tmp_path: Path) -> None:
    config = settings(tmp_path)
    held = sole_session(config)
    with held, pytest.raises(ConfigError, match=r"^run\.name: .*/a is being run by another process"), sole_session(config):
        pass
    with sole_session(config):
        assert (tmp_path / ".a.lock").is_file()


def test_export_of_a_run_and_of_a_checkpoint(tmp_path: Path) -> None:
    config = settings(tmp_path)
    RunDirectory(config)
    checkpoints = store(config.checkpoint_dir)
    best = take(checkpoints, 10, success=0.9)
    take(checkpoints, 20, success=0.2)
    run = tmp_path / "a"
    for name, source, options in (("newest", run, {}), ("best", run, {"best": True}), ("chosen", best, {})):
        export_policy(source, tmp_path / name, **options)
    found = {
        name: json.loads((tmp_path / name / "config.json").read_text())["version"] for name in ("newest", "best", "chosen")
    }
    assert found == {"newest": 20, "best": 10, "chosen": 10}
    with pytest.raises(CheckpointError, match="newest exists; name a new folder"):
        export_policy(run, tmp_path / "newest")
    with pytest.raises(CheckpointError, match="neither a checkpoint"):
        export_policy(tmp_path, tmp_path / "x")
    with pytest.raises(CheckpointError, match=r"exporting .*NotADirectoryError"):
        export_policy(best, run / "config.yaml" / "x")
    (best / "policy" / "config.json").write_text('{"version": 99}')
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        export_policy(best, tmp_path / "y")
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(
    ("command", "otherwise"),
    [
        (["export", "{run}", "{run}-out"], "export one of the run's checkpoints by its own folder"),
        (["resume", "{run}"], "give others (KEY=VALUE), or begin a new run from a checkpoint's policy"),
        (["replay", "stats", "--run", "{run}"], "give the pool's rules with --config"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_settings_of_another_version_are_refused_by_file_and_field(tmp_path: Path, command: list[str], otherwise: str) -> None:
    config = settings(tmp_path)
    file = RunDirectory(config).path / "config.yaml"
    checkpoint = take(store(config.checkpoint_dir), 10)
    tree = yaml.safe_load(file.read_text())
    tree["learner"] |= {"momentum": 0.9, "epochs": "many"}
    file.write_text(yaml.safe_dump(tree))
    result = CliRunner().invoke(app, [part.format(run=tmp_path / "a") for part in command])
    assert isinstance(result.exception, ConfigError)
    first, *fields, last = str(result.exception).splitlines()
    assert first == f"{file}: this version of CacheRL does not accept the run's settings:"
    assert [line.split(": ")[0] for line in fields] == ["  learner.epochs", "  learner.momentum"]
    assert "got 'many'" in fields[0]
    assert last.startswith(f"remove or change them in that file, or {otherwise}")
    assert export_policy(checkpoint, tmp_path / "by_folder").version == 10, "a checkpoint needs no settings"


def test_an_override_mends_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RunDirectory(settings(tmp_path)).path / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["eval"]["tasks"] = "many"
    file.write_text(yaml.safe_dump(tree))
    trained: list[RunConfig] = []
    monkeypatch.setattr("deploy.cli._train", trained.append)
    runner = CliRunner()
    refused = str(runner.invoke(app, ["resume", str(tmp_path / "a")]).exception)
    assert "  eval.tasks: Input should be a valid integer" in refused
    assert "remove or change them in that file, or give others (KEY=VALUE), or begin a new run" in refused
    runner.invoke(app, ["resume", str(tmp_path / "a"), "eval.tasks=12"], catch_exceptions=False)
    (config,) = trained
    assert (config.eval.tasks, config.run.if_exists, config.run_dir) == (12, "resume", tmp_path / "a")
    assert RunDirectory(config).resumed


def test_records_of_updates_that_will_be_made_again_go(tmp_path: Path) -> None:
    directory = RunDirectory(settings(tmp_path))
    alarms = directory.path / "alarms.jsonl"
    alarms.write_text('{"update": 3}\n{"update": 4}\n{"update": 5}\n')
    directory.forget_after(4)
    assert alarms.read_text() == '{"update": 3}\n{"update": 4}\n'
    directory.tensorboard.mkdir()
    directory.metrics.write_text("old")
    directory.forget_after(None)
    assert [path.name for path in directory.path.iterdir()] == ["config.yaml"]


def test_the_commands(tmp_path: Path) -> None:
    config = settings(tmp_path, "run.seed=3")
    RunDirectory(config)
    take(store(config.checkpoint_dir), 10, success=0.9)
    runner = CliRunner()
    result = runner.invoke(app, ["export", str(tmp_path / "a"), str(tmp_path / "out")])
    assert result.output == f"{tmp_path}/out: the policy of version 10\n"
    assert (tmp_path / "out" / "config.json").is_file()
    result = runner.invoke(app, ["resume", str(tmp_path / "a"), "run.seed=4"])
    assert isinstance(result.exception, ConfigError)
    assert "run.seed: 3 in" in str(result.exception)
    result = runner.invoke(app, ["resume", str(tmp_path)])
    assert "is not the folder of a run" in str(result.exception)


class Counter:
    """A part with a state."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.count = state["count"]


def test_every_part_gets_its_state_and_none_may_lack_one() -> None:
    states = collect({"a": Counter(1), "b": Counter(2)})
    parts = {"a": Counter(), "b": Counter()}
    restore(parts, states, where="step-7")
    assert (parts["a"].count, parts["b"].count) == (1, 2)
    with pytest.raises(CheckpointError, match=r"step-7 does not fit .* lacks the state of \['c'\] and holds that of \['b'\]"):
        restore({"a": Counter(9), "c": Counter()}, states, where="step-7")


def test_a_rank_that_cannot_write_fails_the_checkpoint(tmp_path: Path) -> None:
    writers = [StateWriter(rank) for rank in range(2)]
    state = {"version": 3, "tensor": torch.arange(3), "nested": [{"value": 0.5}]}
    writers[0].start(tmp_path, lambda: [write_state(tmp_path, 0, state)], wait=True)
    assert take_reports(tmp_path, 2) is None
    (written,) = take_reports(tmp_path, 1) or []
    back = read_state(tmp_path, 0, [written])
    assert (back["version"], back["tensor"].tolist(), back["nested"]) == (3, [0, 1, 2], [{"value": 0.5}])
    with pytest.raises(CheckpointError, match=r"has no learner-1\.pt: it was made by another number of ranks"):
        read_state(tmp_path, 1, [written])

    def full_disk() -> list[WrittenFile]:
        raise OSError(28, "No space left on device")

    writers[1].start(tmp_path, full_disk, wait=True)
    writers[0].start(tmp_path, lambda: [written], wait=True)
    with pytest.raises(CheckpointError, match=r"learner rank 1 could not write .*No space left on device"):
        take_reports(tmp_path, 2)
    for writer in writers:
        writer.close()


def test_a_disk_without_room_for_the_reason_fails_the_checkpoint_at_once(tmp_path: Path) -> None:
    """The driver would wait for the report until its deadline, with a limit of size here in the place of a full disk."""
    script = """
import contextlib, pathlib, resource, sys
from learner.checkpoint import StateWriter, take_reports, write_state
folder = pathlib.Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with contextlib.suppress(OSError):
    StateWriter(0).start(folder, lambda: [write_state(folder, 0, {"version": 1})], wait=True)
take_reports(folder, 1)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert f"CheckpointError: learner rank 0 could not write {tmp_path}, nor say why: is the disk full?" in ended.stderr


def test_a_copied_state_shares_nothing_and_holds_plain_data_only() -> None:
    tensor = torch.zeros(2)
    copy = copied({"a": [tensor, 1, None, "x"], "b": (True,)})
    tensor += 1
    assert copy["a"][0].tolist() == [0, 0]
    assert copy["b"] == (True,)
    with pytest.raises(CheckpointError, match="cannot hold a PosixPath"):
        copied({"a": Path()})
