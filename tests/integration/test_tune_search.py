"""`cacherl tune` with Ray Tune and Optuna on a synthetic objective: it finds the planted best weights, stops the hopeless
early, and goes on after an interruption."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from deploy.tuning.ledger import Ledger, Trial
from support import PROJECT, MarkedProcess
from tune_objective import BEST

pytestmark = pytest.mark.timeout(180)

RANGES = ("reward.tool_use={low: 0.0, high: 0.4}", "reward.step_penalty={low: -0.1, high: 0.0}")
LISTS = ("reward.tool_use=[0.0, 0.12, 0.3, 0.4]", "reward.step_penalty=[-0.08, -0.03]")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two CPUs, for all searches: starting one takes longer than a search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{PROJECT}:{PROJECT}/tests:{os.environ.get('PYTHONPATH', '')}")
        context = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield context.address_info["gcs_address"]
        ray.shutdown()


def search(tmp_path: Path, address: str, objective: str, axes: tuple[str, ...], *options: str) -> MarkedProcess:
    command = [
        sys.executable,
        "-m",
        "deploy",
        "tune",
        "--config",
        "deploy/configs/smoke.yaml",
        "--objective",
        f"tune_objective:{objective}",
    ]
    command += [part for axis in axes for part in ("--axis", axis)]
    command += [*options, "--name", "s", f"run.dir={tmp_path}", "run.updates=9"]
    environment = {"RAY_ADDRESS": address, "PYTHONPATH": f"{PROJECT}:{PROJECT}/tests"}
    return MarkedProcess(command, environment=environment, output=tmp_path / "output.txt").start()


def results(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "s" / "results.json").read_text())


def uniform_mean() -> float:
    """Mean of the planted objective over points drawn at random from RANGES."""
    axis = np.linspace(0.0, 1.0, 101)
    tool_use, step_penalty = np.meshgrid(0.4 * axis, -0.1 * axis)
    values = 1 - ((tool_use - 0.12) / 0.4) ** 2 - ((step_penalty + 0.03) / 0.1) ** 2
    return float(values.mean())


def test_a_bayesian_search_finds_the_planted_weights(address: str, tmp_path: Path) -> None:
    process = search(tmp_path, address, "planted", RANGES, "--search", "bayes", "--trials", "30")
    assert process.wait(120) == 0, process.text()
    found = results(tmp_path)
    assert len(found["trials"]) == 30
    assert {trial["status"] for trial in found["trials"]} == {"finished"}
    assert found["best"]["value"] > 0.98
    assert found["best"]["point"] == pytest.approx(BEST, abs=0.03)
    values = [trial.value for trial in Ledger(tmp_path / "s" / "trials.jsonl").trials()]
    assert sum(values[20:]) / 10 > uniform_mean() + 0.05, "it searched no better than by chance"
    assert f"best: objective {found['best']['value']:.4g} with reward.tool_use=" in process.text()
    assert (tmp_path / "s" / "search.html").stat().st_size > 1_000_000


def test_a_grid_finds_them_stops_the_hopeless_and_goes_on_after_an_interruption(address: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "s" / "trials.jsonl")

    def ended() -> list[Trial]:
        return [trial for trial in ledger.trials() if trial.status != "unfinished"]

    process = search(tmp_path, address, "slow", LISTS, "--search", "grid")
    process.wait_for(lambda: len(ended()) >= 2, "two trials", 100)
    process.send(signal.SIGINT)
    assert process.wait(60) == 130, process.text()
    assert "give the same command again with --resume" in process.text()
    before = ended()
    assert 2 <= len(before) < 8

    other = search(tmp_path, address, "climbing", LISTS, "--search", "grid", "--resume")
    assert other.wait(60) == 2, other.text()
    assert "--resume: not the search that was interrupted; objective changed" in other.text()

    process = search(tmp_path, address, "slow", LISTS, "--search", "grid", "--resume")
    assert process.wait(100) == 0, process.text()
    assert ended()[: len(before)] == before
    points = Counter(tuple(trial.point.values()) for trial in ended())
    assert points == dict.fromkeys([(a, b) for a in (0.0, 0.12, 0.3, 0.4) for b in (-0.08, -0.03)], 1)
    found = results(tmp_path)
    assert found["best"]["point"] == BEST
    assert found["best"]["value"] == pytest.approx(1.0)
    failed = [trial for trial in found["trials"] if trial["status"] == "failed"]
    assert [trial["point"]["reward.tool_use"] for trial in failed] == [0.4, 0.4]
    assert all("the planted fault" in trial["error"] for trial in failed)
    stopped = [trial for trial in found["trials"] if trial["status"] == "stopped"]
    assert stopped
    assert all(trial["updates"][-1] < 9 for trial in stopped)
