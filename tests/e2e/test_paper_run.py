"""paper.yaml as it stands, with a tiny model and one update instead of a hundred."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from support import PROJECT, MarkedProcess, train_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: What a real run has more of. Of the file's own keys only the number of updates is another.
BUDGET = {
    "run.updates": 1,
    "model.max_length": 192,
    "model.tiny.layers": 2,
    "model.tiny.hidden": 64,
    "model.tiny.heads": 2,
    "model.tiny.intermediate": 128,
    "rollout.max_new_tokens": 16,
    "eval.tasks": 8,
}


def test_the_paper_settings_run(tmp_path: Path) -> None:
    overrides = [f"{key}={value}" for key, value in BUDGET.items()]
    process = MarkedProcess(train_command("paper", f"run.dir={tmp_path}", *overrides), output=tmp_path / "output.txt").start()
    assert process.wait(400) == 0, process.text()[-4000:]
    assert process.leftovers() == ({}, set())
    run = tmp_path / "paper"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("succeeded", 1)

    used = yaml.safe_load((run / "config.yaml").read_text())
    for section, values in yaml.safe_load((PROJECT / "deploy/configs/paper.yaml").read_text()).items():
        for key, value in values.items():
            assert used[section][key] == BUDGET.get(f"{section}.{key}", value), f"{section}.{key}"

    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (update,) = [record for record in records if "learner/loss" in record]
    assert all(math.isfinite(value) for value in update.values())
    assert update["replay/inserted"] >= 500  # replay.warmup_steps
    assert update["learner/grad_norm"] > 0
    assert update["learner/value_loss"] > 0  # the critic of gae, whose values began at 0
    assert update["learner/kl_coef"] == 0.01
    assert update["learner/kl"] > 0  # of the second epoch, after one step away from the reference
    assert update["reward/step_penalty"] < 0
    assert update["rollout/turns"] <= 6  # env.max_turns
    assert [record["step"] for record in records if "eval/success" in record] == [0, 1]
