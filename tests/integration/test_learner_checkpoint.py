"""Checkpoints of real DeepSpeed engines: training goes on from one as if it had never stopped, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cacherl.config import RunConfig, parse_config
from learner.checkpoint import take_reports
from learner_data import group, results_of_ranks, tiny_model
from replay_service.server import ReplayServer
from replay_service.store import Replay

GROUPS, SIZE, UPDATES, CUT = 4, 4, 4, 2


def configure(stage: int, world: int, dtype: str, lora: int, critic: bool) -> RunConfig:
    return parse_config(
        {
            "rollout": {"group_size": SIZE},
            "model": {"max_length": 64, "dtype": dtype},
            "replay": {
                "warmup_steps": 0,
                "update_frequency": 0,
                "deadline_s": 20,
                "freshness_half_life": None,
                "max_uses": None,
            },
            "kl": {"coef": 0.1, "target": 0.01},
            "advantage": {"estimator": "gae"} if critic else {},
            "learner": {
                "batch_size": GROUPS * SIZE,
                "micro_batch_tokens": 100,
                "lr": 1e-2,
                "weight_decay": 0.01,
                "workers": world,
                "zero_stage": stage,
                **({"lora": {"rank": lora}} if lora else {}),
            },
        }
    )


def train(rank: int, world: int, port: int, job: dict[str, Any], results: Any) -> None:
    """Child process: updates `first` to `last`, from a checkpoint if one is given, leaving one behind on the way."""
    from learner.worker import LearnerWorker

    config = configure(job["stage"], world, job["dtype"], job["lora"], job["critic"])
    worker = LearnerWorker(
        config,
        job["model"],
        replay_url=job["url"],
        replay_namespace=job["pool"],
        rank=rank,
        world=world,
        folder=job["folder"].parent,
    )
    worker.setup("127.0.0.1", port, 1)
    torch.manual_seed(rank + job["noise"])  # a checkpoint must bring its own generators
    if job["restore"] is not None:
        assert worker.restore(*job["restore"]) == job["first"] - 1
    for number in range(job["first"], job["last"] + 1):
        stats = worker.update(f"batch-{number}")
        if number == job["cut"]:
            worker.snapshot(job["folder"])
    weights = worker._engine.full_weights()
    drawn = torch.rand(4)
    if rank == 0:
        results.put(({name: value.float().numpy() for name, value in weights.items()}, stats.metrics, drawn.numpy()))
    worker.close()


def run(world: int, **job: Any) -> Any:
    return results_of_ranks(train, world, (job,), timeout_s=120)[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayServer]:
    with ReplayServer(tmp_path_factory.mktemp("replay")) as running:
        yield running


CASES = [
    pytest.param(0, 1, "float32", 0, False, id="plain"),
    pytest.param(3, 2, "bfloat16", 4, False, id="zero-3-two-ranks-bfloat16-lora"),
    *(pytest.param(stage, 1, "float32", 0, True, marks=pytest.mark.slow, id=f"critic-zero-{stage}") for stage in (0, 2)),
    *(pytest.param(stage, 1, "float32", 4, False, marks=pytest.mark.slow, id=f"lora-zero-{stage}") for stage in (0, 2)),
    *(
        pytest.param(stage, world, dtype, 0, False, marks=pytest.mark.slow, id=f"zero-{stage}-{world}-{dtype}")
        for stage in range(4)
        for world in (1, 2)
        for dtype in ("float32", "bfloat16")
        if (stage, world, dtype) != (0, 1, "float32")
    ),
]


@pytest.mark.parametrize(("stage", "world", "dtype", "lora", "critic"), CASES)
def test_updates_after_a_resume_are_bit_identical(
    stage: int, world: int, dtype: str, lora: int, critic: bool, server: ReplayServer, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "model")
    job = {
        "stage": stage,
        "dtype": dtype,
        "lora": lora,
        "critic": critic,
        "model": model,
        "url": server.url,
        "pool": tmp_path.name,
        "folder": tmp_path / "step",
    }
    job["folder"].mkdir()
    rng = np.random.default_rng(0)
    settings = configure(stage, world, dtype, lora, critic)
    with Replay(server.url, tmp_path.name, settings.replay, seed=0) as pool:
        for index in range(3 * GROUPS):
            pool.push(group(rng, f"g{index}", size=SIZE), priority=1.0)
        straight = run(world, first=1, last=UPDATES, cut=CUT, restore=None, noise=0, **job)
        acknowledged = {number: pool.try_sample(f"batch-{number}", GROUPS) for number in range(1, UPDATES + 1)}
        restore = (job["folder"], take_reports(job["folder"], world))
        resumed = run(world, first=CUT + 1, last=UPDATES, cut=None, restore=restore, noise=99, **job)
        assert acknowledged == {number: pool.try_sample(f"batch-{number}", GROUPS) for number in range(1, UPDATES + 1)}
        assert pool.stats().groups == 3 * GROUPS

    (weights, metrics, drawn), (again, metrics_again, drawn_again) = straight, resumed
    assert weights.keys() == again.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    timed = {"time/update"}
    assert {k: v for k, v in metrics_again.items() if k not in timed} == {k: v for k, v in metrics.items() if k not in timed}
    np.testing.assert_array_equal(drawn_again, drawn)
    start = AutoModelForCausalLM.from_pretrained(model).state_dict()
    cut = AutoModelForCausalLM.from_pretrained(job["folder"] / "policy", dtype=torch.float32).state_dict()
    moved = max(float(np.abs(value - cut[name].numpy()).max()) for name, value in weights.items())
    assert moved > 1e-3, "the updates after the cut changed nothing, so nothing was compared"
    assert max(float((cut[name] - start[name]).abs().max()) for name in weights) > 1e-3
