"""A run killed with SIGKILL goes on where its last checkpoint was: same folder, same pool, every metric once."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM

from deploy.checkpoints import CheckpointStore
from deploy.export import export_policy
from replay_service.server import ReplayServer
from replay_service.store import Replay
from support import MarkedProcess, train_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UPDATES, EVERY, KILLED_AFTER = 9, 3, 4


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[MarkedProcess]]:
    running: list[MarkedProcess] = []
    yield running
    for process in running:
        process.kill_all()


def session(tmp_path: Path, started: list[MarkedProcess], *overrides: str) -> MarkedProcess:
    command = train_command(
        "smoke",
        f"run.dir={tmp_path}",
        f"warm_start.cache_dir={tmp_path}/cache",
        f"run.updates={UPDATES}",
        f"checkpoint.every={EVERY}",
        "run.if_exists=resume",
        "learner.lr=1e-4",
        *overrides,
    )
    process = MarkedProcess(command, output=tmp_path / f"output-{len(started)}.txt").start()
    started.append(process)
    return process


def records(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def steps(run: Path, metric: str) -> list[int]:
    return [int(record["step"]) for record in records(run) if metric in record]


def pool_of(run: Path) -> tuple[set[str], int]:
    """(ids of the groups in the pool, trajectories that were ever acknowledged) of a run that is not running."""
    identity = json.loads((run / "identity.json").read_text())
    with ReplayServer(run / "replay") as server, Replay(server.url, identity["replay_namespace"], join=True) as pool:
        return {info.group_id for info in pool.entries()}, pool.stats().inserted


def pushed_of(run: Path, group_ids: set[str]) -> tuple[list[bool], int]:
    """(whether each group was acknowledged, repeated pushes)."""
    identity = json.loads((run / "identity.json").read_text())
    with ReplayServer(run / "replay") as server, Replay(server.url, identity["replay_namespace"], join=True) as pool:
        return pool.pushed(sorted(group_ids)), pool.stats().duplicates


def misuse_of(run: Path) -> dict[str, float]:
    """Trajectory -> what it was charged for its calls, of those in the pool that were only charged."""
    identity = json.loads((run / "identity.json").read_text())
    with ReplayServer(run / "replay") as server, Replay(server.url, identity["replay_namespace"], join=True) as pool:
        groups = [group for group in pool.fetch([info.group_id for info in pool.entries()]) if group]
    parts = {
        member.trajectory_id: [turn.rewards.get("tool_use", 0.0) for turn in member.turns]
        for group in groups
        for member in group.trajectories
    }
    return {name: sum(values) for name, values in parts.items() if sum(values) < 0 and max(values) <= 0}


def test_sigkill_and_resume(tmp_path: Path, started: list[MarkedProcess]) -> None:
    run = tmp_path / "smoke"
    first = session(tmp_path, started)
    first.wait_for(lambda: max(steps(run, "learner/loss"), default=0) >= KILLED_AFTER, "four updates", 280)
    first.wait_for((run / "checkpoints" / f"step-{EVERY:08d}").exists, "the checkpoint before", 10)
    first.send(signal.SIGKILL)
    assert first.wait(10) == -signal.SIGKILL
    before, inserted = pool_of(run)
    identity = (run / "identity.json").read_bytes()
    assert before
    assert not (run / "summary.json").exists()

    second = session(tmp_path, started)
    assert second.wait(280) == 0, second.text()[-4000:]
    assert second.leftovers() == ({}, set())
    assert f"resumed at update {EVERY}" in second.text()
    assert json.loads((run / "summary.json").read_text())["updates"] == UPDATES
    assert (run / "identity.json").read_bytes() == identity

    assert steps(run, "learner/loss") == list(range(1, UPDATES + 1))
    assert steps(run, "eval/success") == [0, 2, 4, 6, 8, 9]
    assert steps(run, "warm_start/loss")[-1] == 0
    episodes = [record["rollout/episodes"] for record in records(run) if "rollout/episodes" in record]
    assert episodes == sorted(episodes)
    elapsed = [record["time/elapsed"] for record in records(run) if "time/elapsed" in record]
    assert elapsed == sorted(elapsed)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("learner/loss")] == list(range(1, UPDATES + 1))

    known, repeated = pushed_of(run, before)
    assert all(known), "an acknowledged group was lost"
    assert repeated == 0, "a group that the pool had was played again"
    assert pool_of(run)[1] > inserted

    store = CheckpointStore(run / "checkpoints", keep_last=2, keep_best=1)
    assert {6, 9} <= {checkpoint.version for checkpoint in store.complete()}
    export_policy(run, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").state_dict()
    final = AutoModelForCausalLM.from_pretrained(run / "final_model").state_dict()
    assert all((exported[name] == value).all() for name, value in final.items())

    refused = session(tmp_path, started, "env.levels=[1]")
    assert refused.wait(60) == 2
    assert "env.levels" in refused.text()
    assert steps(run, "learner/loss") == list(range(1, UPDATES + 1))

    misused = misuse_of(run)
    assert misused
    edited = session(tmp_path, started, "reward.tool_misuse=-0.05", f"run.updates={UPDATES + 2}")
    assert edited.wait(280) == 0, edited.text()[-4000:]
    assert "note: the reward was edited: " in edited.text()
    assert steps(run, "learner/loss") == list(range(1, UPDATES + 3))
    now = misuse_of(run)
    assert misused.keys() & now.keys(), "nothing of the pool was left to compare"
    assert {name: now[name] for name in misused.keys() & now.keys()} == pytest.approx(
        {name: misused[name] / 2 for name in misused.keys() & now.keys()}
    )
