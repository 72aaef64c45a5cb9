"""What the trainer does with its settings, on one DeepSpeed rank in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner_data import group, results_of, row, tiny_model

LR = 1e-2


def make_rows(count: int = 8) -> list[Any]:
    rng = np.random.default_rng(0)
    return [row(rng, int(length), 4) for length in rng.integers(10, 40, count)]


def config_of(**sections: Any) -> Any:
    from cacherl.config import parse_config

    learner = {"micro_batch_tokens": 80, "lr": LR, "batch_size": 8, **sections.pop("learner", {})}
    return parse_config({"model": {"max_length": 40}, "rollout": {"group_size": 4}, "learner": learner, **sections})


class Case:
    """An engine of the tiny model and its trainer."""

    def __init__(
        self,
        model: Path,
        *,
        reference: bool = False,
        critic: bool = False,
        dtype: torch.dtype = torch.float32,
        **sections: Any,
    ) -> None:
        from learner.engine import PolicyEngine
        from learner.policy_model import load_policy
        from learner.trainer import PolicyTrainer

        self.config = config_of(**sections)
        device = torch.device("cpu")
        self.engine = PolicyEngine(model, self.config.learner, dtype=dtype, lr=LR, device=device, world=1, critic=critic)
        policy = load_policy(model, torch.float32).requires_grad_(False) if reference else None
        self.trainer = PolicyTrainer(self.engine, self.config, policy)

    def weights(self) -> np.ndarray:
        full = self.engine.full_weights() or {}
        return np.concatenate([value.float().numpy().ravel() for value in full.values()])


def mini_batches(model: Path) -> dict[str, Any]:
    whole, accumulated, two = (
        Case(model, learner=settings)
        for settings in (
            {},
            {"mini_batch_size": 2, "gradient_accumulation_steps": 4},
            {"mini_batch_size": 2, "gradient_accumulation_steps": 2},
        )
    )
    found = {}
    for name, case in (("whole", whole), ("accumulated", accumulated), ("two", two)):
        result = case.trainer.train(make_rows(), version=0)
        found[name] = (case.weights(), result.metrics, result.log_ratios)
    by_hand = Case(model)
    for part in (0, 1):
        last = by_hand.trainer.train(make_rows()[part::2], version=0)
    found["by hand"] = (by_hand.weights(), last.metrics, last.log_ratios)
    return found


def spike(model: Path) -> dict[str, Any]:
    case = Case(model, learner={"grad_spike": 5.0, "lr": 1e-6})
    rows = make_rows()
    calm = [case.trainer.train(rows, version=0).metrics["learner/skipped_steps"] for _ in range(10)]
    before = case.weights()
    wild = [replace(one, advantages=one.advantages * 100) for one in rows]
    skipped = case.trainer.train(wild, version=0).metrics
    untouched = bool((case.weights() == before).all())
    taken = case.trainer.train(rows, version=0).metrics
    moved = bool((case.weights() != before).any())
    return {"calm": calm, "skipped": skipped, "untouched": untouched, "taken": taken, "moved": moved}


def not_finite(model: Path) -> dict[str, Any]:
    from cacherl.errors import NotFiniteError

    case = Case(model)
    before, rows = case.weights(), make_rows()
    broken = [replace(rows[0], advantages=np.full(4, np.nan, np.float32)), *rows[1:]]
    try:
        case.trainer.train(broken, version=0)
    except NotFiniteError as error:
        return {"error": str(error), "untouched": bool((case.weights() == before).all())}
    return {}


def adapting(model: Path) -> dict[str, Any]:
    case = Case(
        model,
        reference=True,
        kl={"coef": 0.1, "target": 1e-6, "surge": 2.0},
        governor={"lr_by_ess": True},
        loss={"name": "grpo"},
    )
    return {"metrics": [case.trainer.train(make_rows(), version=0).metrics for _ in range(3)]}


def near_the_model(made: Any) -> Any:
    """The group with log-probabilities that are about those of the tiny model, so that its ratios are about 1, and with states
    that its members share turn by turn."""
    members = [
        replace(
            one,
            rollout_logprobs=np.where(one.loss_mask, one.rollout_logprobs - 1, 0).astype(np.float32),
            turns=tuple(replace(turn, state_hash=f"state {number}") for number, turn in enumerate(one.turns)),
        )
        for one in made.trajectories
    ]
    return replace(made, trajectories=tuple(members))


def sampled_groups(weights: tuple[float, float] = (0.5, 1.0)) -> list[Any]:
    """Two groups with their plan entries, the second one replayed."""
    from replay_service.plan import PlanEntry

    rng = np.random.default_rng(4)
    groups = [near_the_model(group(rng, f"g{index}")) for index in range(2)]
    facts = {"priority": 1.0, "probability": 0.1, "inclusion": 0.2, "version": 0, "max_version": 0, "trajectories": 4}
    return [
        (PlanEntry(group_id=one.group_id, is_weight=weights[index], tokens=9, bytes=9, uses=index, **facts), one)  # type: ignore[arg-type]
        for index, one in enumerate(groups)
    ]


def prepared(model: Path) -> dict[str, Any]:
    from learner.preparation import Preparation

    found: dict[str, Any] = {}
    for name, sections in {
        "none": {},
        "truncated": {"correction": {"method": "truncated", "cap": 1.5}},
        "m2po": {"correction": {"method": "m2po"}, "loss": {"name": "grpo"}},
        "weighted": {"advantage": {"baseline": "weighted", "min_ess": 0.01}},
    }.items():
        case = Case(model, **sections)
        made = Preparation(case.engine, case.config)(sampled_groups())
        metrics = case.trainer.train(made.rows, version=0).metrics
        fields = ("rollout_logprobs", "proximal_logprobs", "correction_weights", "advantages", "is_weight", "replayed")
        found[name] = ([{field: getattr(one, field) for field in fields} for one in made.rows], made.advantages, metrics)
    return found


def critic(model: Path) -> dict[str, Any]:
    from learner.preparation import Preparation

    sampled = sampled_groups((1.0, 1.0))
    case = Case(model, critic=True, advantage={"estimator": "gae", "lam": 1.0, "gamma": 1.0}, value={"clip_range": 0.5})
    prepare = Preparation(case.engine, case.config)
    losses, advantages, targets = [], [], []
    for _ in range(12):
        made = prepare(sampled)
        losses.append(case.trainer.train(made.rows, version=0).metrics["learner/value_loss"])
        advantages.append(np.concatenate([one.advantages for one in made.rows]))
        targets.append(np.concatenate([one.value_targets for one in made.rows]))
    returns = [member.total_reward for _, one in sampled for member in one.trajectories]
    counts = [member.num_sampled for _, one in sampled for member in one.trajectories]
    return {"losses": losses, "advantages": advantages, "targets": targets, "returns": np.repeat(returns, counts)}


def critic_stages(model: Path) -> dict[str, Any]:
    """A supervised step and two updates with a critic at every ZeRO stage."""
    from learner.loss import Totals, likelihood_loss
    from learner.packing import cut
    from learner.preparation import Preparation

    found = {}
    for stage in (0, 1, 2, 3):
        case = Case(model, critic=True, advantage={"estimator": "gae"}, learner={"zero_stage": stage})
        batches = cut(make_rows(), case.config.learner)
        for batch in batches:
            case.engine.backward(likelihood_loss(case.engine.forward(batch)[0], Totals(tokens=32, sequences=8)))
        case.engine.step(LR)
        for version in range(2):
            metrics = case.trainer.train(Preparation(case.engine, case.config)(sampled_groups()).rows, version).metrics
        found[f"zero {stage}"] = (case.weights(), metrics["learner/value_loss"])
    return found


def bfloat16(model: Path) -> dict[str, Any]:
    """Three updates of several micro-batches in float32, and in bfloat16 at every ZeRO stage."""
    plain = Case(model)
    start = plain.weights()
    cases = {stage: Case(model, dtype=torch.bfloat16, learner={"zero_stage": stage}) for stage in (0, 1, 2, 3)}
    for case in (plain, *cases.values()):
        for version in range(3):
            case.trainer.train(make_rows(), version)
    return {"start": start, "float32": plain.weights(), "stages": [case.weights() for case in cases.values()]}


ALGORITHMS: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {"loss": {"name": "grpo"}},
    "dual clip": {"loss": {"name": "grpo", "dual_clip": 1.5}},
    "dr_grpo": {"loss": {"name": "dr_grpo"}},
    "gspo": {"loss": {"name": "gspo"}},
    "cispo": {"loss": {"name": "cispo"}},
    "loo": {"advantage": {"estimator": "loo"}},
    "gigpo": {"advantage": {"estimator": "gigpo", "gamma": 0.5}},
    "truncated": {"correction": {"method": "truncated"}},
    "masked": {"correction": {"method": "masked"}},
    "sequence": {"correction": {"method": "sequence"}},
    "m2po": {"correction": {"method": "m2po"}},
    "keep_within": {"correction": {"keep_within": 1.2}},
}


def algorithms(model: Path) -> dict[str, Any]:
    """Two updates of each."""
    from learner.preparation import Preparation

    found = {}
    for name, sections in ALGORITHMS.items():
        case = Case(model, **sections)
        for version in range(2):
            rows = Preparation(case.engine, case.config)(sampled_groups()).rows
            metrics = case.trainer.train(rows, version).metrics
        found[name] = (case.weights(), metrics)
    return found


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    scenario.__name__: scenario
    for scenario in (mini_batches, spike, not_finite, adapting, prepared, critic, critic_stages, bfloat16, algorithms)
}


def child(port: int, model: Path, results: Any) -> None:
    from learner.engine import Rendezvous, join

    torch.set_num_threads(1)
    join(Rendezvous(rank=0, world=1, port=port, timeout_s=60), torch.device("cpu"))
    for name, scenario in SCENARIOS.items():
        results.put((name, scenario(model)))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    model = tiny_model(tmp_path_factory.mktemp("model"))
    return dict(results_of(child, [model], len(SCENARIOS)))


def test_accumulated_mini_batches_are_one_large_batch_and_fewer_are_more_steps(outcomes: dict[str, Any]) -> None:
    found = outcomes["mini_batches"]
    whole, accumulated, two, by_hand = (found[name] for name in ("whole", "accumulated", "two", "by hand"))
    step = np.linalg.norm(two[0] - whole[0])
    assert np.linalg.norm(accumulated[0] - whole[0]) < 5e-3 * step
    assert accumulated[1]["learner/loss"] == pytest.approx(whole[1]["learner/loss"], rel=1e-4)
    np.testing.assert_allclose(accumulated[2], whole[2], atol=1e-4)
    assert np.linalg.norm(two[0] - by_hand[0]) < 5e-3 * step
    assert two[1]["learner/tokens"] == whole[1]["learner/tokens"]
    # The second half is judged after the first one's step.
    np.testing.assert_allclose(two[2][1::2], by_hand[2], atol=1e-3)
    assert np.abs(two[2][1::2] - whole[2][1::2]).max() > 1e-3


def test_a_gradient_spike_is_skipped_and_counted(outcomes: dict[str, Any]) -> None:
    found = outcomes["spike"]
    assert found["calm"] == [0.0] * 10
    assert found["skipped"]["learner/skipped_steps"] == 1.0
    assert found["untouched"]
    assert found["taken"]["learner/skipped_steps"] == 0.0
    assert found["moved"]


def test_a_loss_that_is_no_number_reaches_no_weight(outcomes: dict[str, Any]) -> None:
    assert outcomes["not_finite"] == {
        "error": "the loss is not finite; the weights are those before this step", "untouched": True,
    }  # fmt: skip


def test_learning_rate_and_kl_weight_follow_what_is_measured(outcomes: dict[str, Any]) -> None:
    first, second, third = outcomes["adapting"]["metrics"]
    for metrics in (first, second, third):
        assert 0 < metrics["learner/ess"] < 1
        assert metrics["learner/lr"] == pytest.approx(LR * max(metrics["learner/ess"] ** 0.5, 0.1))
    assert (first["learner/kl"], first["learner/kl_surge"]) == (pytest.approx(0.0, abs=1e-9), 0.0)
    assert second["learner/kl"] > 2e-6
    assert second["learner/kl_surge"] == 1.0
    assert [first["learner/kl_coef"], second["learner/kl_coef"]] == pytest.approx([0.1, 0.098])
    assert third["learner/kl_coef"] == pytest.approx(0.098 * 2)


def test_preparation_scores_the_batch_where_something_needs_it(outcomes: dict[str, Any]) -> None:
    found = outcomes["prepared"]
    plain, advantages, _ = found["none"]
    assert all(one["proximal_logprobs"] is None and one["correction_weights"] is None for one in plain)
    assert [one["is_weight"] for one in plain] == [0.5] * 4 + [1.0] * 4
    assert [one["replayed"] for one in plain] == [False] * 4 + [True] * 4
    np.testing.assert_allclose(advantages, [one["advantages"][0] for one in plain], rtol=1e-6)

    rows, _, metrics = found["truncated"]
    for one in rows:
        w = np.exp(one["proximal_logprobs"].astype(np.float64) - one["rollout_logprobs"])
        np.testing.assert_allclose(one["correction_weights"], np.minimum(w, 1.5), rtol=1e-5)
    assert metrics["learner/clip_fraction"] == 0.0  # the ratio is to the policy at the update's start
    assert metrics["learner/correction_weight"] == pytest.approx(
        np.concatenate([one["correction_weights"] for one in rows]).mean(), rel=1e-5
    )
    proximal = [one["proximal_logprobs"] for one in rows]

    rows, _, metrics = found["m2po"]
    pairs = zip(proximal, rows, strict=True)
    squares = np.concatenate([scores.astype(np.float64) - one["rollout_logprobs"] for scores, one in pairs]) ** 2
    kept = np.concatenate([one["correction_weights"] for one in rows]) == 1
    assert 0 < metrics["learner/dropped_tokens"] == pytest.approx(1 - kept.mean())
    assert metrics["learner/clip_fraction"] == 0.0  # the mask has taken the clip's place
    assert squares[~kept].min() > 0.04

    rows, weighted, _ = found["weighted"]
    assert np.abs(weighted - advantages).max() > 0.01
    assert all(one["correction_weights"] is None for one in rows)


def test_a_critic_learns_the_returns_and_advantages_are_what_is_left(outcomes: dict[str, Any]) -> None:
    found = outcomes["critic"]
    for targets in found["targets"]:  # with lam and gamma 1 the target is the return, whatever the critic says
        np.testing.assert_allclose(targets, found["returns"], atol=1e-5)
    first = found["returns"] - found["returns"].mean()
    np.testing.assert_allclose(found["advantages"][0], first / found["returns"].std(), atol=1e-4)  # values begin at 0
    assert found["losses"][0] == pytest.approx((found["returns"] ** 2).mean() / 2, rel=1e-4)
    assert found["losses"][-1] < 0.5 * found["losses"][0]


def test_every_algorithm_trains_in_its_own_way(outcomes: dict[str, Any]) -> None:
    found = outcomes["algorithms"]
    assert set(found) == set(ALGORITHMS)
    for name, (weights, metrics) in found.items():
        assert np.isfinite(weights).all(), name
        assert all(np.isfinite(value) for value in metrics.values()), name
    names = list(found)
    for index, name in enumerate(names):
        for other in names[:index]:
            assert np.linalg.norm(found[name][0] - found[other][0]) > 1e-3, (name, other)


def test_a_critic_trains_alike_at_every_stage(outcomes: dict[str, Any]) -> None:
    found = outcomes["critic_stages"]
    weights, loss = found["zero 0"]
    for name, (others, value) in found.items():
        assert np.linalg.norm(others - weights) < 5e-3 * np.linalg.norm(weights), name
        assert value == pytest.approx(loss, rel=1e-3), name


def test_bfloat16_trains_alike_at_every_stage(outcomes: dict[str, Any]) -> None:
    found = outcomes["bfloat16"]
    moved = np.linalg.norm(found["float32"] - found["start"])
    first, *others = found["stages"]
    assert np.linalg.norm(first - found["float32"]) < 0.3 * moved  # Adam makes a whole step of a gradient near 0
    for weights in others:
        assert np.linalg.norm(weights - first) < 0.01 * moved
