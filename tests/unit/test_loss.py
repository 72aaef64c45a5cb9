"""The loss against independent float64 references, gradient included, and however the batch is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cacherl.config import LossSection
from learner.batch import MicroBatch, Row, micro_batches
from learner.diagnostics import Diagnostics, metrics
from learner.loss import Totals, k3, likelihood_loss, policy_loss, token_weights
from learner_data import row


def make_rows(count: int = 6) -> list[Row]:
    rng = np.random.default_rng(3)
    return [
        row(rng, int(rng.integers(12, 30)), int(rng.integers(1, 9)), is_weight=0.25 + 0.1 * index) for index in range(count)
    ]


def totals_of(rows: list[Row]) -> Totals:
    return Totals(tokens=sum(len(one.positions) for one in rows), sequences=len(rows))


def policy_values(batch: MicroBatch, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, entropies) that depend on the row's identity only, so that every cut sees the same."""
    values, entropies = [], []
    for index, count in zip(batch.indices.tolist(), batch.trained_per_row.tolist(), strict=True):
        rng = np.random.default_rng([seed, index])
        values.append(-4 + rng.standard_normal(count))
        entropies.append(rng.uniform(0, 3, count))
    return tuple(torch.tensor(np.concatenate(part), dtype=torch.float32) for part in (values, entropies))


def reference_loss(rows: list[Row], settings: LossSection, kl_coef: float) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """Loop over rows and tokens in float64: (loss, d loss / d log-probability, d loss / d entropy) by row."""
    tokens, total = sum(len(one.positions) for one in rows), 0.0
    grads, entropy_grads = [], []
    for index, one in enumerate(rows):
        rng = np.random.default_rng([0, index])
        new = np.float32(-4 + rng.standard_normal(len(one.positions))).astype(np.float64)
        entropy = np.float32(rng.uniform(0, 3, len(one.positions))).astype(np.float64)
        ref = np.float32(-4 + np.random.default_rng([1, index]).standard_normal(len(one.positions))).astype(np.float64)
        grad = np.zeros(len(new))
        share = 1 / tokens if settings.aggregation == "token" else 1 / (len(rows) * len(new))
        weight = float(np.float32(one.is_weight)) * share
        for t, advantage in enumerate(one.advantages.astype(np.float64)):
            ratio = np.exp(new[t] - float(one.rollout_logprobs[t]))
            low, high = 1 - settings.clip_low, 1 + settings.clip_high
            unclipped, clipped = ratio * advantage, min(max(ratio, low), high) * advantage
            total -= weight * min(unclipped, clipped)
            if unclipped <= clipped:
                grad[t] -= weight * ratio * advantage
            distance = new[t] - ref[t]
            total += weight * kl_coef * (np.exp(-distance) - 1 + distance)
            grad[t] += weight * kl_coef * (1 - np.exp(-distance))
            total -= weight * settings.entropy_coef * entropy[t]
        grads.append(grad)
        entropy_grads.append(np.full(len(new), -weight * settings.entropy_coef))
    return total, grads, entropy_grads


@pytest.mark.parametrize("max_tokens", [30, 64, 1000])
@pytest.mark.parametrize(
    ("settings", "kl_coef"),
    [
        ({}, 0.0),
        ({"aggregation": "sequence"}, 0.0),
        ({"clip_low": 0.1, "clip_high": 0.4, "entropy_coef": 0.3}, 0.2),
        ({"aggregation": "sequence", "entropy_coef": 0.1}, 0.05),
    ],
)
def test_loss_and_gradient_equal_the_reference_however_cut(settings: dict[str, Any], kl_coef: float, max_tokens: int) -> None:
    rows, section = make_rows(), LossSection(**settings)
    expected, expected_grads, expected_entropy_grads = reference_loss(rows, section, kl_coef)
    loss = 0.0
    for batch in micro_batches(rows, max_tokens):
        logprobs, entropies = (value.requires_grad_() for value in policy_values(batch, seed=0))
        terms = policy_loss(
            logprobs, entropies, batch, totals_of(rows), section, kl_coef=kl_coef, reference=policy_values(batch, seed=1)[0]
        )
        terms.loss.backward()
        loss += terms.loss.item()
        order = batch.indices.tolist()
        np.testing.assert_allclose(
            logprobs.grad.numpy(), np.concatenate([expected_grads[i] for i in order]), rtol=2e-5, atol=1e-8
        )
        if section.entropy_coef:
            np.testing.assert_allclose(
                entropies.grad.numpy(), np.concatenate([expected_entropy_grads[i] for i in order]), rtol=1e-5
            )
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_weights_sum_to_the_mean_importance_weight() -> None:
    rows = make_rows()
    (batch,) = micro_batches(rows, 1000)
    by_sequence = token_weights(batch, totals_of(rows), "sequence").sum().item()
    assert by_sequence == pytest.approx(np.mean([one.is_weight for one in rows]))
    by_token = token_weights(batch, totals_of(rows), "token").sum().item()
    counts = [len(one.positions) for one in rows]
    assert by_token == pytest.approx(np.average([one.is_weight for one in rows], weights=counts))


def test_clipping_takes_the_gradient_only_where_it_would_go_on() -> None:
    rng = np.random.default_rng(0)
    one = row(rng, 10, 4)
    one.advantages[:] = [1, 1, -1, -1]
    (batch,) = micro_batches([one], 100)
    ratios = torch.tensor([1.5, 0.5, 1.5, 0.5])
    logprobs = (batch.rollout_logprobs + ratios.log()).requires_grad_()
    terms = policy_loss(logprobs, torch.zeros(4), batch, Totals(tokens=4, sequences=1), LossSection())
    terms.loss.backward()
    assert terms.clipped.tolist() == [True, False, False, True]
    np.testing.assert_allclose(logprobs.grad.numpy(), [0, -0.125, 0.375, 0], atol=1e-6)
    assert terms.loss.item() == pytest.approx(-(1.28 + 0.5 - 1.5 - 0.8) / 4)


def test_kl_needs_a_reference() -> None:
    (batch,) = micro_batches([row(np.random.default_rng(0), 10, 4)], 100)
    with pytest.raises(ValueError, match=r"kl_coef 0\.1 needs the reference"):
        policy_loss(torch.zeros(4), torch.zeros(4), batch, Totals(tokens=4, sequences=1), LossSection(), kl_coef=0.1)


def test_k3_is_the_kl_in_expectation_and_never_negative() -> None:
    policy, other = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    exact = (policy * (policy / other).log()).sum()
    estimate = (policy * k3(policy.log(), other.log())).sum()
    assert estimate.item() == pytest.approx(exact.item(), rel=1e-5)
    assert (k3(policy.log(), other.log()) >= 0).all()
    assert k3(policy.log(), policy.log()).tolist() == [0, 0, 0]


def test_likelihood_loss_is_the_mean_over_the_whole_batch() -> None:
    logprobs = torch.tensor([-1.0, -2.0])
    assert likelihood_loss(logprobs, Totals(tokens=4, sequences=1)).item() == 0.75


def _diagnose(cut: Callable[[list[Row]], list[list[MicroBatch]]]) -> dict[str, float]:
    """Metrics from the sums of several ranks, each with its own micro-batches."""
    rows = make_rows()
    added, highest = None, torch.zeros(1, dtype=torch.float64)
    for batches in cut(rows):
        rank = Diagnostics(0, torch.device("cpu"))
        for batch in batches:
            logprobs, entropies = policy_values(batch, seed=0)
            terms = policy_loss(logprobs, entropies, batch, totals_of(rows), LossSection())
            rank.add(batch, terms, entropies, before_step=True)
        sums, largest = rank.tensors()
        added = sums if added is None else added + sums
        highest = torch.maximum(highest, largest)
    assert added is not None
    return metrics(added, highest, passes=1)


def test_diagnostics_equal_a_reference_and_do_not_depend_on_the_cut() -> None:
    rows = make_rows()
    whole = _diagnose(lambda given: [micro_batches(given, 1000)])
    # One micro-batch a row, dealt to two ranks; `policy_values` go by the index within all rows.
    split = _diagnose(lambda given: [micro_batches(given, 30)[::2], micro_batches(given, 30)[1::2]])
    for name, value in whole.items():
        if name != "learner/useful_tokens":
            assert split[name] == pytest.approx(value, rel=1e-5), name

    new = [np.float32(-4 + np.random.default_rng([0, i]).standard_normal(len(one.positions))) for i, one in enumerate(rows)]
    logs = [value.astype(np.float64) - one.rollout_logprobs for value, one in zip(new, rows, strict=True)]
    ratios = np.exp(np.concatenate(logs))
    sequence = np.exp([log.sum() for log in logs])
    assert whole["learner/ratio_mean"] == pytest.approx(ratios.mean(), rel=1e-5)
    assert whole["learner/ratio_max"] == pytest.approx(ratios.max(), rel=1e-5)
    assert whole["learner/ess"] == pytest.approx(sequence.sum() ** 2 / (sequence**2).sum() / len(rows), rel=1e-4)
    assert whole["learner/mismatch_kl"] == pytest.approx((ratios - 1 - np.log(ratios)).mean(), rel=1e-4)
    advantages = np.concatenate([one.advantages for one in rows])
    assert whole["learner/advantage_std"] == pytest.approx(advantages.std(), rel=1e-5)
    clipped = ((ratios > 1.28) & (advantages > 0)) | ((ratios < 0.8) & (advantages < 0))
    assert whole["learner/clip_fraction"] == pytest.approx(clipped.mean())
