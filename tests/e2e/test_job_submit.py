"""`ray job submit` on a cluster that was there before runs the demo config to its end, and leaves the cluster as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import PROJECT, MarkedProcess, free_port

pytestmark = pytest.mark.timeout(420)

RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Environment to talk to a one-node cluster started with `ray start --head`.

    The command holds it and ends it, since `ray stop` ends every cluster of the user; its folder is its own, since Ray notes in
    it which cluster is the current one.
    """
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PATH": path}
    dashboard = free_port()
    ports = [f"--port={free_port()}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={free_port()}"]
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # a short path: sockets are named in it
        command = [RAY, "start", "--head", "--block", *ports, f"--temp-dir={folder}", "--num-cpus=2", "--disable-usage-stats"]
        cluster = MarkedProcess(command, env, output=tmp_path / "ray-start.txt").start()
        cluster.wait_for(lambda: "block forever" in cluster.text(), "the cluster to run", 90)
        yield {**os.environ, **env, "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}"}
        cluster.send(signal.SIGTERM)
        cluster.wait(60)
        assert cluster.leftovers()[0] == {}


def submit(entrypoint: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [RAY, "job", "submit", "--working-dir", ".", "--", *entrypoint]
    return subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=360, check=False)


def test_job_runs_to_its_end(head: dict[str, str], tmp_path: Path) -> None:
    overrides = [
        f"run.dir={tmp_path}",
        "run.updates=2",
        f"warm_start.cache_dir={tmp_path}/cache",
        "warm_start.updates=5",
        "warm_start.demonstrations=200",
        "learner.batch_size=16",
        "replay.warmup_steps=16",
        "replay.update_frequency=16",
        "eval.tasks=12",
        "advantage.zero_variance=return",
    ]
    entrypoint = ["cacherl", "train", "--config", "deploy/configs/demo.yaml", *overrides]
    submitted = submit(entrypoint, head)
    # Ray's head answers before the agent that takes its jobs is up.
    deadline = time.monotonic() + 60
    while "No available agent" in submitted.stdout + submitted.stderr and time.monotonic() < deadline:
        time.sleep(2)
        submitted = submit(entrypoint, head)
    assert submitted.returncode == 0, submitted.stdout[-4000:] + submitted.stderr[-2000:]
    assert "succeeded" in submitted.stdout
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["status"] == "succeeded"
    assert summary["updates"] == 2
    assert "held-out success" in submitted.stdout
