"""Every setting of paper.yaml changes what a run does: with another value a real learner, pool or reward acts differently."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from cacherl.config import RunConfig, load_config
from cacherl.trajectory import TrajectoryGroup
from deploy.loop import Loop
from learner_data import group, results_of, tiny_model
from replay_service.plan import SamplePlan
from replay_service.server import ReplayServer
from replay_service.store import Replay
from reward_data import episode, good, says
from rewards.composer import Composer
from support import PROJECT

PAPER = PROJECT / "deploy/configs/paper.yaml"
#: A budget and a pool for a tiny model, and a learning rate at which two passes differ.
TINY = [
    "model.max_length=64", "learner.lr=0.02", "learner.micro_batch_tokens=1024", "replay.warmup_steps=8", "replay.max_ahead=64",
]  # fmt: skip
#: Key -> another value; what of it shows in a learner's updates.
LEARNER_KEYS = {
    "advantage.gamma": 0.5,
    "advantage.lam": 0.5,
    "value.clip_range": 0.01,
    "loss.clip_low": 0.05,
    "loss.clip_high": 0.05,
    "kl.coef": 1.0,
    "learner.batch_size": 16,
    "learner.mini_batch_size": 4,
    "learner.gradient_accumulation_steps": 2,
    "learner.epochs": 1,
    "learner.max_grad_norm": 0.01,
    "replay.priority_exponent": 0.1,
    "replay.importance_sampling": False,
}
POOL_KEYS = {"replay.capacity": 80, "replay.warmup_steps": 16, "replay.update_frequency": 1000, "replay.max_uses": 1}
REWARD_KEYS = {"reward.success": 2.0, "reward.tool_use": 0.01, "reward.result_utilization": 0.05, "reward.step_penalty": -0.01}
#: Checked elsewhere: they say what is run, not how it learns.
OTHER_KEYS = {
    *("run.name", "run.updates", "model.dtype", "env.name", "env.max_turns", "rollout.group_size"),
    *("advantage.estimator", "loss.name"),
}


def paper(*changes: str) -> RunConfig:
    return load_config(PAPER, changes)


def changed(keys: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key, f"{key}={value}") for key, value in keys.items()]


def test_every_key_of_the_file_is_looked_at() -> None:
    tree = yaml.safe_load(PAPER.read_text())
    keys = {f"{section}.{key}" for section, values in tree.items() for key in values}
    assert keys == set(LEARNER_KEYS) | set(POOL_KEYS) | set(REWARD_KEYS) | OTHER_KEYS


def make_groups() -> list[TrajectoryGroup]:
    """Four groups of eight of different priority, whose ratios to the tiny model are about 1."""
    rng = np.random.default_rng(4)
    groups = []
    for index in range(4):
        made = group(rng, f"g{index}", size=8)
        members = [
            replace(one, rollout_logprobs=np.where(one.loss_mask, one.rollout_logprobs - 1, 0).astype(np.float32))
            for one in made.trajectories
        ]
        groups.append(replace(made, trajectories=tuple(members)))
    return groups


def updates(port: int, model: Path, folder: Path, cases: dict[str, list[str]], results: Any) -> None:
    """Child process: two updates of a real learner on the same pool for each case; puts (case, weights, groups trained on)."""
    from learner.worker import LearnerWorker

    with ReplayServer(folder / "replay") as server:
        for number, (name, overrides) in enumerate(cases.items()):
            config = paper(*TINY, *overrides)
            with Replay(server.url, f"pool{number}", config.replay) as pool:
                for index, one in enumerate(make_groups()):
                    pool.push(one, priority=1.0 + index)
            worker = LearnerWorker(
                config, model, replay_url=server.url, replay_namespace=f"pool{number}", rank=0, world=1, folder=folder
            )
            worker.setup("127.0.0.1", port, 1)
            stats = [worker.update(f"batch-{step}") for step in range(2)]
            manifest, buffer = worker.publish(2)  # type: ignore[misc]
            assert manifest.nbytes == len(buffer)
            results.put((name, buffer.view(np.float32), [len(one.group_ids) for one in stats]))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[np.ndarray, list[int]]]:
    model = tiny_model(tmp_path_factory.mktemp("model"))
    cases = {"as given": [], "again": [], **{key: [override] for key, override in changed(LEARNER_KEYS)}}
    found = results_of(updates, [model, tmp_path_factory.mktemp("run"), cases], len(cases))
    return {name: (weights, counts) for name, weights, counts in found}


def test_the_same_settings_learn_the_same(learned: dict[str, Any]) -> None:
    weights, counts = learned["as given"]
    assert counts == [4, 4]
    np.testing.assert_allclose(learned["again"][0], weights, atol=1e-3)


@pytest.mark.parametrize("key", LEARNER_KEYS)
def test_the_learner_learns_something_else(learned: dict[str, Any], key: str) -> None:
    rounding = np.linalg.norm(learned["again"][0] - learned["as given"][0])
    assert np.linalg.norm(learned[key][0] - learned["as given"][0]) > max(10 * rounding, 1e-3)
    assert learned[key][1] == ([2, 2] if key == "learner.batch_size" else [4, 4])


def pool_behaviour(server: ReplayServer, name: str, *overrides: str) -> tuple[int, list[bool]]:
    """(groups evicted after 12 of 8 came, whether each of three batches could be drawn of them)."""
    rng = np.random.default_rng(0)
    with Replay(server.url, name, paper(*overrides).replay) as pool:
        for index in range(12):
            pool.push(group(rng, f"{name}-{index}", size=8), priority=1.0)
        evicted = pool.stats().evicted
        return evicted, [isinstance(pool.try_sample(f"{name}-{batch}", 6), SamplePlan) for batch in range(3)]


def test_the_pool_behaves_differently(tmp_path: Path) -> None:
    with ReplayServer(tmp_path) as server:
        assert pool_behaviour(server, "paper") == (0, [False] * 3)  # warm-up is far away
        warm, unhurried = "replay.warmup_steps=16", "replay.update_frequency=0"
        assert pool_behaviour(server, "warm", warm) == (0, [True] * 3)
        assert pool_behaviour(server, "hungry", warm, "replay.update_frequency=1000") == (0, [True, False, False])
        assert pool_behaviour(server, "once", warm, "replay.max_uses=1") == (0, [True, True, False])
        assert pool_behaviour(server, "wide", warm, unhurried, "replay.max_ahead=64") == (0, [True] * 3)
        small = [warm, unhurried, "replay.max_ahead=64", "replay.capacity=80"]
        assert pool_behaviour(server, "small", *small) == (2, [True] * 3)


def test_the_reward_pays_differently() -> None:
    tools = says("[CALL] find", (good("needed", "first"), '{"id": "zq81"}'))
    played = episode(tools, says("[ANSWER] zq81"), outcome=1.0)

    def value(*overrides: str) -> float:
        return Composer.from_config(paper(*overrides)).score([played])[0].total_reward

    assert value() == pytest.approx(1.0 + 0.05 + 0.1 - 2 * 0.02)
    assert value("reward.success=2.0") == pytest.approx(2.11)
    assert value("reward.tool_use=0.01") == pytest.approx(1.07)
    assert value("reward.result_utilization=0.05") == pytest.approx(1.06)
    assert value("reward.step_penalty=-0.01") == pytest.approx(1.13)


async def test_the_run_ends_after_as_many_updates_as_asked_for() -> None:
    class AskedForABatch(Exception):
        pass

    async def wait(_: str) -> None:
        raise AskedForABatch

    async def goes_on(config: RunConfig) -> bool:
        loop = SimpleNamespace(config=config, version=100, stream=SimpleNamespace(prefix="p"), _wait_for_batch=wait)
        try:
            await Loop._updates(loop)  # type: ignore[arg-type]
        except AskedForABatch:
            return True
        return False

    assert not await goes_on(paper())
    assert await goes_on(paper("run.updates=101"))
