"""The environment of docs/environments.md, copied into a folder outside of the project, conforms and trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import PROJECT, MarkedProcess

pytestmark = pytest.mark.timeout(300)

NAME = "hunts.treasure:Treasure"


def example() -> str:
    """The code that the document shows."""
    text = (PROJECT / "docs/environments.md").read_text()
    match = re.search(r"## Write your own environment\n.*?```python\n(.*?)```", text, re.DOTALL)
    assert match is not None
    return match[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "elsewhere" / "hunts"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "treasure.py").write_text(example())
    return package.parent


def test_the_example_is_short() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) < 60


def test_the_example_conforms(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy", "env", "check", NAME, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["passed"] is True


@pytest.mark.slow
def test_the_example_trains(folder: Path, tmp_path: Path) -> None:
    overrides = [
        f"run.dir={tmp_path}/runs",
        "run.updates=3",
        "env.settings.coins=4",
        "env.levels=[1,2]",
        "curriculum.enabled=true",
        "curriculum.window=2",
        f"warm_start.cache_dir={tmp_path}/cache",
        "warm_start.updates=40",
        "warm_start.demonstrations=256",
        "eval.every=3",
    ]
    command = [sys.executable, "-m", "deploy", "train", "--config", str(PROJECT / "deploy/configs/smoke.yaml"), "--env", NAME]
    run = MarkedProcess(
        [*command, *overrides], output=tmp_path / "output.txt", cwd=folder, environment={"PYTHONPATH": str(PROJECT)}
    ).start()
    assert run.wait(240) == 0, run.text()[-4000:]
    summary = json.loads((tmp_path / "runs/smoke/summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("succeeded", 3)
    records = [json.loads(line) for line in (tmp_path / "runs/smoke/metrics.jsonl").read_text().splitlines()]
    values = {name: value for record in records for name, value in record.items()}
    assert {"eval/success/level1", "eval/success/level2", "curriculum/success/level1"} <= values.keys()
    assert values["curriculum/level"] in (1.0, 2.0)
