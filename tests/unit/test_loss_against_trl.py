"""The losses against TRL's on the same tensors.

What TRL 1.16.0 gives for `TENSORS` is recorded here; where TRL is installed, it is asked again.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cacherl.learning_settings import KLSection, LossSection
from learner.batch import Row, micro_batches
from learner.loss import KLTerm, Totals, policy_loss

LENGTHS, WIDTH, KL_COEF = (7, 3, 5, 1), 7, 0.05
#: name -> (our settings, TRL's attributes, loss, norm of its gradient by the log-probabilities)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], float, float]] = {
    "grpo": ({"name": "grpo"}, {"loss_type": "grpo"}, 0.2145073, 0.2118261),
    "dapo": ({"name": "dapo"}, {"loss_type": "dapo", "epsilon_high": 0.28}, 0.0758982, 0.2334347),
    "dr_grpo": (
        {"name": "dr_grpo", "constant_length": 9},
        {"loss_type": "dr_grpo", "max_completion_length": 9},
        0.0390659,
        0.1037488,
    ),
    "gspo": (
        {"name": "gspo"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        0.22611,
        0.1857872,
    ),
    "dual_clip": ({"name": "grpo", "dual_clip": 1.5}, {"loss_type": "grpo", "args": {"delta": 1.5}}, 0.2095811, 0.1519418),
    "cispo": ({"name": "cispo"}, {"loss_type": "cispo", "epsilon_high": 5.0}, -0.1202165, 0.2980664),
}


def tensors() -> dict[str, torch.Tensor]:
    """[rows, WIDTH] float32 each: log-probabilities of the policy, of the one that sampled, of the reference; mask; [rows]
    advantages."""
    rng = np.random.default_rng(11)
    old = -3 + 0.5 * rng.standard_normal((4, WIDTH))
    values = {
        "new": old + 0.4 * rng.standard_normal((4, WIDTH)),
        "old": old,
        "reference": old + 0.4 * rng.standard_normal((4, WIDTH)),
        "mask": np.arange(WIDTH) < np.array(LENGTHS)[:, None],
        "advantages": np.array([1.2, -0.7, -1.5, 0.4]),
    }
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}


def ours(settings: dict[str, Any]) -> tuple[float, torch.Tensor]:
    """(loss, gradient [rows, WIDTH]) of the learner."""
    given = tensors()
    rows = [
        Row(
            token_ids=np.zeros(length + 1, dtype=np.int32),
            positions=np.arange(1, length + 1),
            rollout_logprobs=given["old"][index, :length].numpy(),
            advantages=np.full(length, given["advantages"][index], dtype=np.float32),
            policy_versions=np.zeros(length, dtype=np.int32),
        )
        for index, length in enumerate(LENGTHS)
    ]
    new = given["new"].requires_grad_()
    (batch,) = micro_batches(rows, 100)
    chosen = [torch.cat([values[i, : LENGTHS[i]] for i in batch.indices.tolist()]) for values in (new, given["reference"])]
    kl = KLTerm(coef=KL_COEF, reference=chosen[1], settings=KLSection(coef=KL_COEF))
    totals = Totals(tokens=sum(LENGTHS), sequences=len(LENGTHS))
    terms = policy_loss(chosen[0], torch.zeros(totals.tokens), batch, totals, LossSection(**settings), kl=kl)
    terms.loss.backward()
    assert new.grad is not None
    return terms.loss.item(), new.grad


def theirs(settings: dict[str, Any]) -> tuple[float, torch.Tensor]:
    """The same of TRL."""
    if find_spec("trl") is None:
        pytest.skip("TRL is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl import GRPOTrainer
    given = tensors()
    new = given["new"].requires_grad_()
    args = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1} | settings.get("args", {})
    attributes = {
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False,
        "importance_sampling_level": "token", "beta": KL_COEF, "epsilon_low": 0.2, "epsilon_high": 0.2,
        "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False, "vllm_importance_sampling_correction": False,
        "model": SimpleNamespace(training=True), "_metrics": {"train": defaultdict(list)},
        "accelerator": SimpleNamespace(num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value),
        "_get_per_token_logps_and_entropies": lambda *_, **__: (new, torch.zeros_like(new), None),
    }  # fmt: skip
    trainer = SimpleNamespace(**attributes | settings | {"args": SimpleNamespace(**args)})
    ids = torch.zeros(4, WIDTH, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": torch.ones(4, 1), "completion_ids": ids, "completion_mask": given["mask"],
        "advantages": given["advantages"], "old_per_token_logps": given["old"], "ref_per_token_logps": given["reference"],
        "num_items_in_batch": given["mask"].sum(),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert new.grad is not None
    return loss.item(), new.grad


def constant_of_cispo() -> float:
    """TRL's cispo multiplies by log pi where ours multiplies by log (pi / mu): a difference without a gradient."""
    given = tensors()
    weights = torch.exp(given["new"] - given["old"]).clamp(max=5.0) * given["advantages"][:, None]
    return float(-(weights * given["old"] * given["mask"]).sum() / given["mask"].sum())


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_that_trl_gave(name: str) -> None:
    settings, _, loss, norm = CASES[name]
    value, gradient = ours(settings)
    assert value + (constant_of_cispo() if name == "cispo" else 0.0) == pytest.approx(loss, abs=2e-6)
    assert gradient.norm().item() == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_trl(name: str) -> None:
    settings, attributes, *_ = CASES[name]
    expected, expected_gradient = theirs(attributes)
    value, gradient = ours(settings)
    assert value + (constant_of_cispo() if name == "cispo" else 0.0) == pytest.approx(expected, abs=2e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-7)
