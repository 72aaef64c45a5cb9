"""Every setting of paper.yaml changes what a run does: with another value its folder, episodes, pool, reward or model differ.

Driven by the file: a key that is added to it and proven nowhere fails here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from run_observations import family_played, folder, goes_on_after_100, paid, pool, turns_of_the_lost

from cacherl.config import RunConfig, load_config
from cacherl.trajectory import TrajectoryGroup
from learner_data import group, results_of, tiny_model
from replay_service.server import ReplayServer
from replay_service.store import Replay
from support import PROJECT

PAPER = PROJECT / "deploy/configs/paper.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Another value of a key, and what is seen of the run with the file's value and with that one.

    Attributes:
        beside: other settings of both, without which nothing could be seen in so short a time.
    """

    value: Any
    seen: Callable[[RunConfig, Path], Awaitable[Any]]
    given: Any
    changed: Any
    beside: tuple[str, ...] = ()


#: A pool that can be drawn from after 12 groups, by a learner that may take all it wants.
WARM = ("replay.warmup_steps=16",)
FREE = (*WARM, "replay.update_frequency=0", "replay.max_ahead=64")
PROOFS = {
    "run.name": Proof(value="mine", seen=folder, given="paper", changed="mine"),
    "run.updates": Proof(value=101, seen=goes_on_after_100, given=False, changed=True),
    "env.name": Proof(value="trip", seen=family_played, given="research", changed="trip"),
    "env.max_turns": Proof(value=2, seen=turns_of_the_lost, given=[6] * 8, changed=[2] * 8),
    "rollout.group_size": Proof(value=4, seen=turns_of_the_lost, given=[6] * 8, changed=[6] * 4),
    "replay.capacity": Proof(value=80, seen=pool, given=(0, [True] * 3), changed=(2, [True] * 3), beside=FREE),
    "replay.warmup_steps": Proof(value=16, seen=pool, given=(0, [False] * 3), changed=(0, [True] * 3)),
    "replay.update_frequency": Proof(
        value=1000, seen=pool, given=(0, [True] * 3), changed=(0, [True, False, False]), beside=WARM
    ),
    "replay.max_uses": Proof(value=1, seen=pool, given=(0, [True] * 3), changed=(0, [True, True, False]), beside=WARM),
    "reward.success": Proof(value=2.0, seen=paid, given=1.11, changed=2.11),
    "reward.tool_use": Proof(value=0.01, seen=paid, given=1.11, changed=1.07),
    "reward.result_utilization": Proof(value=0.05, seen=paid, given=1.11, changed=1.06),
    "reward.step_penalty": Proof(value=-0.01, seen=paid, given=1.11, changed=1.13),
}
#: Key -> another value, with which two updates of a real learner on the same pool give other weights.
LEARNER = {
    "model.dtype": "bfloat16",
    "advantage.estimator": "gigpo",
    "advantage.gamma": 0.5,
    "advantage.lam": 0.5,
    "value.clip_range": 0.01,
    "loss.name": "dapo",  # the file sets both clips, so this is the mean over tokens instead of rows
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
#: A budget and a pool for a tiny model, and a learning rate at which two passes differ.
TINY = [
    "model.max_length=64", "learner.lr=0.02", "learner.micro_batch_tokens=1024", "replay.warmup_steps=8", "replay.max_ahead=64",
]  # fmt: skip


def paper(*changes: str) -> RunConfig:
    return load_config(PAPER, changes)


def keys_of(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys of a YAML tree."""
    found = []
    for name, value in tree.items():
        found += keys_of(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
    return found


KEYS = keys_of(yaml.safe_load(PAPER.read_text()))


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_the_file_is_proven_once(key: str) -> None:
    assert (key in PROOFS) + (key in LEARNER) == 1, f"{key}: add to PROOFS or LEARNER what another value of it changes"


def test_nothing_is_proven_that_the_file_does_not_set() -> None:
    assert set(PROOFS) | set(LEARNER) <= set(KEYS)


@pytest.mark.parametrize("key", PROOFS)
async def test_another_value_makes_another_run(key: str, tmp_path: Path) -> None:
    proof = PROOFS[key]
    assert proof.given != proof.changed
    assert await proof.seen(paper(*proof.beside), tmp_path) == proof.given
    assert await proof.seen(paper(*proof.beside, f"{key}={proof.value}"), tmp_path / "other") == proof.changed


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What two updates led to: published weights (float32 [n]) and their type; groups trained on by each update."""

    weights: np.ndarray
    dtype: str
    groups: list[int]


def updates(port: int, model: Path, folder: Path, cases: dict[str, list[str]], results: Any) -> None:
    """Child process: two updates of a real learner on the same pool for each case; puts (case, `Learned`)."""
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
            (dtype,) = {tensor.dtype for tensor in manifest.tensors}
            parts = [torch.from_numpy(buffer[one.offset : one.offset + one.nbytes]) for one in manifest.tensors]
            weights = torch.cat([part.view(getattr(torch, dtype)) for part in parts]).float().numpy()
            counts = [len(one.group_ids) for one in stats]
            results.put((name, Learned(weights=weights, dtype=dtype, groups=counts)))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Learned]:
    model = tiny_model(tmp_path_factory.mktemp("model"))
    cases = {"as given": [], "again": [], **{key: [f"{key}={value}"] for key, value in LEARNER.items()}}
    return dict(results_of(updates, [model, tmp_path_factory.mktemp("run"), cases], len(cases), timeout_s=400))


def test_the_same_settings_learn_the_same(learned: dict[str, Learned]) -> None:
    given, again = learned["as given"], learned["again"]
    assert given.groups == again.groups == [4, 4]
    np.testing.assert_allclose(again.weights, given.weights, atol=1e-3)


@pytest.mark.parametrize("key", LEARNER)
def test_another_value_makes_another_model(learned: dict[str, Learned], key: str) -> None:
    given, other = learned["as given"].weights, learned[key]
    rounding = np.linalg.norm(learned["again"].weights - given)
    assert np.linalg.norm(other.weights - given) > max(10 * rounding, 1e-3)
    assert other.groups == ([2, 2] if key == "learner.batch_size" else [4, 4])
    assert other.dtype == ("bfloat16" if key == "model.dtype" else "float32")
