"""Success, a raised error, Ctrl-C and kill -9 each leave no process of the run and no file in shared memory behind."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import MarkedProcess, train_command

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run_of(tmp_path: Path) -> Iterator[object]:
    started: list[MarkedProcess] = []

    def start(*overrides: str) -> MarkedProcess:
        command = train_command("smoke", f"run.dir={tmp_path}", f"warm_start.cache_dir={tmp_path}/cache", *overrides)
        process = MarkedProcess(command, output=tmp_path / "output.txt", environment={"PYTHONPATH": str(Path(__file__).parent)})
        started.append(process.start())
        return process

    yield start
    for process in started:
        process.kill_all()


def summary_of(tmp_path: Path) -> dict[str, object]:
    return dict(json.loads((tmp_path / "smoke" / "summary.json").read_text()))


def training(tmp_path: Path) -> bool:
    """The run has made its first update."""
    metrics = tmp_path / "smoke" / "metrics.jsonl"
    return metrics.exists() and "learner/loss" in metrics.read_text()


def test_success(run_of, tmp_path: Path) -> None:
    run = run_of()
    assert run.wait(240) == 0, run.text()[-4000:]
    assert run.leftovers() == ({}, set())
    summary = summary_of(tmp_path)
    assert summary["status"] == "succeeded"
    assert summary["updates"] == 3
    assert summary["episodes"] >= 3 * 16
    assert (tmp_path / "smoke" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "smoke" / "final_model" / "config.json").exists()
    for noise in ("WARNING", "Warning", "Traceback"):
        assert noise not in run.text()


def test_raised_error(run_of, tmp_path: Path) -> None:
    run = run_of("env.name=broken_env:broken", "rollout.max_failed_groups=3")
    assert run.wait(240) == 1, run.text()[-4000:]
    assert run.leftovers() == ({}, set())
    assert summary_of(tmp_path)["status"] == "failed"
    assert "the planted fault" in run.text()
    assert "Traceback" not in run.text()


def test_ctrl_c(run_of, tmp_path: Path) -> None:
    run = run_of("run.updates=1000")
    run.wait_for(lambda: training(tmp_path), "an update", 200)
    run.send(signal.SIGINT)
    assert run.wait(60) == 130, run.text()[-4000:]
    assert run.leftovers() == ({}, set())
    assert summary_of(tmp_path)["status"] == "interrupted"
    assert "Traceback" not in run.text()


def test_a_signal_while_the_engines_start(run_of, tmp_path: Path) -> None:
    run = run_of()
    run.wait_for(lambda: any("/dev/shm/psm_" in maps for maps in run.memory_maps()), "vLLM's message queues", 200)
    run.send(signal.SIGTERM)
    assert run.wait(60) == 130, run.text()[-4000:]
    assert run.leftovers() == ({}, set())
    assert summary_of(tmp_path)["status"] == "interrupted"
    assert "stopping" in run.text()


def test_kill_9_of_the_driver(run_of, tmp_path: Path) -> None:
    run = run_of("run.updates=1000")
    run.wait_for(lambda: training(tmp_path), "an update", 200)
    run.send(signal.SIGKILL)
    assert run.wait(10) == -signal.SIGKILL
    processes, files = run.leftovers(grace_s=40)
    # Ray's own agents of the node end by themselves, minutes later.
    assert [line for line in processes.values() if not re.match(r"ray::\w*Agent|.*/ray/(dashboard|_private)/", line)] == []
    # A killed Python process cannot remove its 32-byte semaphores; weights and message queues must be gone.
    assert {file for file in files if not file.name.startswith("sem.mp-")} == set()


def test_two_actors_and_two_ranks(run_of, tmp_path: Path) -> None:
    run = run_of("actors.count=2", "actors.cpus_per_actor=0.5", "learner.workers=2", "learner.cpus_per_worker=0.5")
    assert run.wait(280) == 0, run.text()[-4000:]
    assert run.leftovers() == ({}, set())
    assert summary_of(tmp_path)["updates"] == 3
    assert {"actor-0.log", "actor-1.log", "learner-0.log", "learner-1.log"} <= {
        p.name for p in (tmp_path / "smoke/logs").iterdir()
    }
