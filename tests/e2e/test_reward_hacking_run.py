"""A reward that pays for every call is noticed while the run goes on: console, metrics, trajectories, report."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from support import MarkedProcess, train_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_planted_reward_for_every_call_raises_the_alarm(tmp_path: Path) -> None:
    command = train_command(
        "smoke",
        f"run.dir={tmp_path}",
        f"warm_start.cache_dir={tmp_path}/cache",
        "env.name=paying_env:paying",
        "reward.tool_use=1.0",
        "reward.step_penalty=0",
        "reward.allow_domination=true",  # without it the config check refuses such a reward
        "warm_start.updates=120",
        "warm_start.demonstrations=1024",
        "run.updates=5",
        "eval.every=5",
        "alarms.reward_hacking.window=3",
        "alarms.reward_hacking.min_rise=0.5",
    )
    path = {"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"}
    process = MarkedProcess(command, output=tmp_path / "output.txt", environment=path).start()
    assert process.wait(300) == 0, process.text()
    run = tmp_path / "smoke"

    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [record for record in records if "alarm/reward_hacking" in record]
    assert [record["step"] for record in updates] == [1, 2, 3, 4, 5]
    shares = [record["reward_batch/variance_share/tool_use"] for record in updates]
    raised = next(last for last in (3, 4, 5) if fmean(shares[last - 3 : last]) >= 0.5)
    assert [record["alarm/reward_hacking"] for record in updates] == [float(step >= raised) for step in range(1, 6)]
    assert updates[-1]["alarm/reward_hacking/tool_use"] == 1.0
    for record in updates:
        parts = {name: value for name, value in record.items() if name.startswith("reward_batch/variance_share/")}
        assert sum(parts.values()) == pytest.approx(1.0)

    (event,) = [json.loads(line) for line in (run / "alarms.jsonl").read_text().splitlines()]
    assert (event["name"], event["subject"], event["update"]) == ("reward_hacking", "tool_use", raised)
    assert f"ALARM reward_hacking at update {raised}: the reward's part 'tool_use' makes" in process.text()
    shown = [json.loads(line) for line in (run / event["evidence"]).read_text().splitlines()]
    assert len(shown) == 5
    assert [record["excess"] for record in shown] == sorted((record["excess"] for record in shown), reverse=True)
    for record in shown:
        paid = sum(turn["rewards"]["tool_use"] for turn in record["turns"])
        assert record["parts"]["tool_use"] == pytest.approx(paid)
        assert record["excess"] > 0
    assert any(len(turn["calls"]) for turn in shown[0]["turns"])
    assert event["evidence"] in (run / "report.html").read_text("utf-8")
