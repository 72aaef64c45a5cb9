"""DeepSpeed engines over gloo: one update is the same however it is split and at every ZeRO stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from learner_data import results_of, results_of_ranks, row, tiny_model

#: Name -> settings of the learner; the last six on two ranks only.
CASES: dict[str, dict[str, Any]] = {
    "zero 0": {"zero_stage": 0},
    "zero 1": {"zero_stage": 1},
    "zero 2": {"zero_stage": 2},
    "zero 3": {"zero_stage": 3},
    "packed": {"zero_stage": 0, "packing": True},
    "packed, zero 3": {"zero_stage": 3, "packing": True},
    "recomputed": {"zero_stage": 0, "activation_checkpointing": True},
    "recomputed, zero 3": {"zero_stage": 3, "activation_checkpointing": True},
    "offloaded": {"zero_stage": 2, "offload": "optimizer"},
    "all offloaded": {"zero_stage": 3, "offload": "all"},
}
LR = 1e-2
MAX_NORM = 1.0


def make_rows() -> list[Any]:
    rng = np.random.default_rng(0)
    return [row(rng, int(length), 4, temperature=0.8) for length in rng.integers(10, 40, 8)]


def cases(world: int) -> dict[str, dict[str, Any]]:
    return CASES if world == 2 else dict(list(CASES.items())[:4])


class Counter:
    """Counts calls of a function and makes them."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.function(*args, **options)


def train(rank: int, world: int, port: int, model: Path, results: Any) -> None:
    """Child process: two updates with every case's settings; puts (case, weights, metrics, log-ratios, counts)."""
    import torch.distributed
    from deepspeed.runtime.zero import partition_parameters

    from cacherl.config import parse_config
    from learner.engine import PolicyEngine, Rendezvous, join
    from learner.trainer import PolicyTrainer

    torch.set_num_threads(1)
    device = torch.device("cpu")
    join(Rendezvous(rank=rank, world=world, port=port, timeout_s=60), device)
    rows = make_rows()
    # The second rank has fewer micro-batches than the first, so that fillers are needed.
    mine = rows if world == 1 else (rows[:6] if rank == 0 else rows[6:])
    for case, settings in cases(world).items():
        config = parse_config(
            {
                "model": {"max_length": 40},
                "learner": {**settings, "micro_batch_tokens": 80, "lr": LR, "max_grad_norm": MAX_NORM, "epochs": 2},
                "loss": {"entropy_coef": 0.01},
            }
        )
        engine = PolicyEngine(model, config.learner, dtype=torch.float32, lr=LR, device=device, world=world)
        trainer = PolicyTrainer(engine, config, None)
        trainer.train(rows[:1] if rank == 0 else [], version=0)
        engine.reset_optimizer()
        result = trainer.train(mine, version=1)
        layer = engine._engine.module.policy.model.layers[0]
        passes = Counter(layer.mlp.forward)
        layer.mlp.forward = passes
        gathers = Counter(partition_parameters._dist_allgather_fn)
        partition_parameters._dist_allgather_fn = gathers
        partitioned = sum(hasattr(value, "ds_tensor") and not value.ds_persist for value in layer.parameters())
        weights = engine.full_weights(all_ranks=True)
        partition_parameters._dist_allgather_fn = gathers.function
        counts = {"gathers": gathers.calls, "partitioned": partitioned}
        trainer.train(mine, version=2)
        counts["passes"] = passes.calls / result_batches(trainer, mine)
        if rank == 0:
            copies = {name: value.numpy() for name, value in weights.items()}
            results.put((case, copies, result.metrics, result.log_ratios, counts))
    engine.close()


def result_batches(trainer: Any, rows: list[Any]) -> int:
    """Micro-batches of two epochs."""
    return 2 * len(trainer._step(rows, list(range(len(rows)))).batches)


def run(world: int, model: Path) -> dict[str, Any]:
    collected = results_of_ranks(train, world, (model,), len(list(cases(world))), timeout_s=240)
    return {case: rest for case, *rest in collected}


def bare(model: Path) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The same two updates in plain PyTorch and float64, one row at a time: (weights, gradient norms of the second)."""
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    rows = make_rows()
    norms: list[float] = []
    for data in (rows[:1], rows):
        optimizer = torch.optim.AdamW(policy.parameters(), lr=LR, weight_decay=0.0)
        norms.clear()
        for _ in range(2):
            loss, tokens = torch.zeros((), dtype=torch.float64), sum(len(one.positions) for one in data)
            for one in data:
                ids = torch.from_numpy(one.token_ids.astype(np.int64))
                log_p = (policy(ids[None]).logits[0, one.positions - 1] / one.temperature).log_softmax(-1)
                new = log_p.gather(-1, ids[one.positions, None])[:, 0]
                ratio = torch.exp(new - torch.from_numpy(one.rollout_logprobs))
                advantage = torch.from_numpy(one.advantages)
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
                entropy = -(log_p.exp() * log_p).sum(-1)
                loss = loss - (gain + 0.01 * entropy).sum() / tokens
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_NORM)))
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach() for name, value in policy.named_parameters()}, norms


def distance(left: Mapping[str, Any], right: Mapping[str, Any]) -> float:
    """Euclidean, over all weights. Adam turns the rounding of a gradient near zero into a visible step of one weight, so
    single weights say little; plain PyTorch in float32 is 1.2e-3 of the update away from itself in float64."""
    return float(np.sqrt(sum(np.square(np.asarray(left[name]) - np.asarray(right[name])).sum() for name in right)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_every_way_to_split_the_work_equals_plain_pytorch(model: Path) -> None:
    initial = load_file(model / "model.safetensors")
    expected, norms = bare(model)
    assert min(norms) > MAX_NORM  # so clipping is part of what is compared
    outcomes = {(world, case): value for world in (1, 2) for case, value in run(world, model).items()}
    assert set(outcomes) == {(world, case) for world in (1, 2) for case in cases(world)}
    for key, (weights, metrics, log_ratios, counts) in outcomes.items():
        assert set(weights) == set(expected), key
        assert distance(weights, expected) < 5e-3 * distance(expected, initial), key
        assert metrics["learner/grad_norm"] == pytest.approx(np.mean(norms), rel=1e-3), key
        assert len(log_ratios) == (8 if key[0] == 1 else 6)
        assert counts["passes"] == (2 if key[1].startswith("recomputed") else 1), key
        if key == (2, "zero 3"):
            assert counts["partitioned"] > 3
            assert counts["gathers"] == 1  # one collective for all weights, not one for each


def train_adapters(port: int, model: Path, results: Any) -> None:
    """Child process: three updates of an adapter at every stage, with the base as KL reference; puts (stage, weights, KL)."""
    from cacherl.config import parse_config
    from learner.engine import PolicyEngine, Rendezvous, join
    from learner.trainer import PolicyTrainer

    torch.set_num_threads(1)
    device = torch.device("cpu")
    join(Rendezvous(port=port, timeout_s=60), device)
    for stage in range(4):
        learner = {"zero_stage": stage, "micro_batch_tokens": 80, "lr": LR, "epochs": 2, "lora": {"rank": 4}}
        config = parse_config(
            {
                "model": {"max_length": 40},
                "kl": {"coef": 0.5},
                "learner": {**learner, "activation_checkpointing": stage in (1, 3)},
            }
        )
        torch.manual_seed(0)  # of the adapter's first matrix
        engine = PolicyEngine(model, config.learner, dtype=torch.float32, lr=LR, device=device, world=1)
        trainer = PolicyTrainer(engine, config, engine.reference)
        kl = [trainer.train(make_rows(), version=version).metrics["learner/kl"] for version in range(3)]
        results.put((stage, {name: value.numpy() for name, value in (engine.full_weights() or {}).items()}, kl))
    engine.close()


def test_an_adapter_learns_the_same_at_every_stage(model: Path) -> None:
    outcomes = {stage: rest for stage, *rest in results_of(train_adapters, (model,), 4, timeout_s=240)}
    initial = load_file(model / "model.safetensors")
    weights, kl = outcomes[0]
    moved = distance(weights, initial)
    assert moved > 1
    assert min(kl) > 0.1  # the base stays behind, and is what the KL is measured against
    for stage, (others, other_kl) in outcomes.items():
        assert distance(others, weights) < 1e-4 * moved, stage
        assert other_kl == pytest.approx(kl, rel=1e-4, abs=1e-7), stage
