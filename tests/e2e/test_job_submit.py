"""`ray job submit` on a cluster that was there before runs the demo config to its end, and leaves the cluster as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import PROJECT, free_port

pytestmark = pytest.mark.timeout(420)

RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture
def head(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment to talk to a one-node cluster started with `ray start --head`."""
    port, dashboard = free_port(), free_port()
    env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env.pop("RAY_ADDRESS", None)
    command = [
        RAY,
        "start",
        "--head",
        f"--port={port}",
        f"--dashboard-port={dashboard}",
        "--num-cpus=2",
        "--disable-usage-stats",
    ]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=90)
    yield {**env, "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}"}
    subprocess.run([RAY, "stop", "--force"], env=env, check=True, stdout=subprocess.DEVNULL, timeout=60)


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
