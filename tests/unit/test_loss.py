"""The losses against independent float64 references, gradient included, and however the batch is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cacherl.learning_settings import KLSection, LossSection
from learner.batch import MicroBatch, Row, micro_batches
from learner.diagnostics import Diagnostics, metrics
from learner.kl import k1, k2, k3
from learner.loss import KLTerm, Totals, likelihood_loss, policy_loss, token_weights
from learner.packing import packed_batches
from learner_data import row
from loss_reference import expected, make_rows, policy_of, policy_tensors, totals_of

Cut = Callable[[list[Row]], list[MicroBatch]]
CUTS: list[Cut] = [
    lambda rows: micro_batches(rows, 30),
    lambda rows: micro_batches(rows, 64),
    lambda rows: micro_batches(rows, 1000, 2),
    lambda rows: packed_batches(rows, 40),
    lambda rows: packed_batches(rows, 1000),
]


def assert_equals_reference(rows: list[Row], section: LossSection, kl: KLSection | None, cut: Cut) -> None:
    reference = expected(rows, section, kl)
    loss = 0.0
    for batch in cut(rows):
        logprobs, entropies, other = policy_tensors(batch, rows)
        term = None if kl is None else KLTerm(coef=kl.coef, reference=other, settings=kl)
        terms = policy_loss(logprobs, entropies, batch, totals_of(rows), section, kl=term)
        terms.loss.backward()
        loss += terms.loss.item()
        order = batch.indices.tolist()
        grads = np.concatenate([reference.logprob_grads[i] for i in order])
        np.testing.assert_allclose(logprobs.grad.numpy(), grads, rtol=5e-5, atol=1e-7)
        if section.entropy_coef:
            grads = np.concatenate([reference.entropy_grads[i] for i in order])
            np.testing.assert_allclose(entropies.grad.numpy(), grads, rtol=1e-5)
    assert loss == pytest.approx(reference.loss, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "section",
    [
        {},
        {"name": "grpo"},
        {"name": "grpo", "dual_clip": 1.3},
        {"clip_low": 0.1, "clip_high": 0.4, "entropy_coef": 0.3},
        {"name": "dr_grpo", "constant_length": 48},
        {"name": "gspo"},
        {"name": "gspo", "clip_low": 0.2, "clip_high": 0.1, "dual_clip": 1.05},
        {"name": "cispo"},
        {"name": "cispo", "clip_low": 0.1, "clip_high": 0.2, "aggregation": "sequence", "entropy_coef": 0.1},
    ],
)
def test_losses_and_gradients_equal_the_reference_however_cut(section: dict[str, Any], cut: Cut) -> None:
    assert_equals_reference(make_rows(foreign=1), LossSection(**section), None, cut)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("replayed", ["include", "weighted", "exclude"])
def test_kl_and_its_gradient_equal_the_reference(estimator: str, replayed: str) -> None:
    kl = KLSection(coef=0.2, estimator=estimator, replayed=replayed)
    assert_equals_reference(make_rows(foreign=2), LossSection(), kl, CUTS[1])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["grpo", "dapo", "dr_grpo", "gspo", "cispo"]),
    aggregation=st.sampled_from(["token", "sequence", "constant"]),
    count=st.integers(1, 7),
    cut=st.sampled_from(CUTS),
)
def test_any_batch_equals_the_reference(seed: int, name: str, aggregation: str, count: int, cut: Cut) -> None:
    section = LossSection(name=name, aggregation=aggregation, **({"constant_length": 20} if aggregation == "constant" else {}))
    assert_equals_reference(make_rows(count, seed=seed, foreign=seed % 2), section, KLSection(coef=0.1), cut)


def test_weights_sum_to_the_mean_importance_weight() -> None:
    rows = make_rows()
    (batch,) = micro_batches(rows, 1000)
    by_sequence = token_weights(batch, totals_of(rows), "sequence").sum().item()
    assert by_sequence == pytest.approx(np.mean([one.is_weight for one in rows]))
    by_token = token_weights(batch, totals_of(rows), "token").sum().item()
    counts = [len(one.positions) for one in rows]
    assert by_token == pytest.approx(np.average([one.is_weight for one in rows], weights=counts))
    by_constant = token_weights(batch, totals_of(rows), "constant", 10).sum().item()
    assert by_constant == pytest.approx(np.mean([one.is_weight * n / 10 for one, n in zip(rows, counts, strict=True)]))


def clipping_batch(advantages: list[float]) -> MicroBatch:
    one = row(np.random.default_rng(0), 10, 4)
    one.advantages[:] = advantages
    (batch,) = micro_batches([one], 100)
    return batch


def test_clipping_takes_the_gradient_only_where_it_would_go_on() -> None:
    batch = clipping_batch([1, 1, -1, -1])
    logprobs = (batch.rollout_logprobs + torch.tensor([1.5, 0.5, 1.5, 0.5]).log()).requires_grad_()
    terms = policy_loss(logprobs, torch.zeros(4), batch, Totals(tokens=4, sequences=1), LossSection())
    terms.loss.backward()
    assert terms.clipped.tolist() == [True, False, False, True]
    np.testing.assert_allclose(logprobs.grad.numpy(), [0, -0.125, 0.375, 0], atol=1e-6)
    assert terms.loss.item() == pytest.approx(-(1.28 + 0.5 - 1.5 - 0.8) / 4)


def test_dual_clip_limits_what_a_runaway_ratio_costs() -> None:
    batch = clipping_batch([-1, -1, 1, -1])
    logprobs = (batch.rollout_logprobs + torch.tensor([50.0, 2.0, 50.0, 0.1]).log()).requires_grad_()
    terms = policy_loss(logprobs, torch.zeros(4), batch, Totals(tokens=4, sequences=1), LossSection(dual_clip=3.0))
    terms.loss.backward()
    assert terms.clipped.tolist() == [True, False, True, True]
    np.testing.assert_allclose(logprobs.grad.numpy(), [0, 0.5, 0, 0], atol=1e-6)
    assert terms.loss.item() == pytest.approx((3.0 + 2.0 - 1.28 + 0.8) / 4)


def test_cispo_keeps_the_gradient_of_every_token() -> None:
    batch = clipping_batch([1, 1, -1, -1])
    logprobs = (batch.rollout_logprobs + torch.tensor([50.0, 0.01, 50.0, 0.01]).log()).requires_grad_()
    terms = policy_loss(logprobs, torch.zeros(4), batch, Totals(tokens=4, sequences=1), LossSection(name="cispo"))
    terms.loss.backward()
    np.testing.assert_allclose(logprobs.grad.numpy() * -4, [5.0, 0.01, -5.0, -0.01], rtol=1e-4)
    assert terms.clipped.tolist() == [True, False, True, False]


def test_ratios_of_foreign_tokens_stay_bounded_without_a_clip() -> None:
    one = row(np.random.default_rng(0), 10, 4)
    foreign = replace(one, foreign=True, rollout_logprobs=np.zeros(4, np.float32))
    foreign.advantages[:] = 1.0
    (batch,) = micro_batches([foreign], 100)
    logprobs = torch.tensor([0.0, -1.0, -5.0, -200.0], requires_grad=True)
    terms = policy_loss(logprobs, torch.zeros(4), batch, Totals(tokens=1, sequences=1), LossSection())
    terms.loss.backward()
    p = np.exp([0.0, -1.0, -5.0, -200.0])
    assert terms.loss.item() == pytest.approx(-(p / (p + 0.1)).sum(), rel=1e-5)
    np.testing.assert_allclose(logprobs.grad.numpy(), -p * 0.1 / (p + 0.1) ** 2, rtol=1e-4, atol=1e-30)
    assert not terms.clipped.any()


@pytest.mark.parametrize(("estimate", "unbiased"), [(k1, True), (k2, False), (k3, True)])
def test_what_the_kl_estimates_are_in_expectation(estimate: Callable[..., torch.Tensor], unbiased: bool) -> None:
    policy, other = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    exact = (policy * (policy / other).log()).sum().item()
    mean = (policy * estimate(policy.log(), other.log())).sum().item()
    assert (mean == pytest.approx(exact, rel=1e-5)) == unbiased
    assert estimate(policy.log(), policy.log()).tolist() == [0, 0, 0]


def test_gradients_of_the_kl_estimates_in_expectation() -> None:
    """k2's is the KL's, k1's vanishes: what the configuration's help says of them."""
    other = torch.tensor([0.2, 0.5, 0.3]).log()
    grads = {}
    for name, estimate in (("k1", k1), ("k2", k2), ("exact", None)):
        logits = torch.tensor([0.4, 0.1, -0.3], requires_grad=True)
        log_p = logits.log_softmax(-1)
        weights = log_p.exp() if estimate is None else log_p.exp().detach()
        (weights * (k1 if estimate is None else estimate)(log_p, other)).sum().backward()
        grads[name] = logits.grad.numpy()
    np.testing.assert_allclose(grads["k1"], 0, atol=1e-6)
    np.testing.assert_allclose(grads["k2"], grads["exact"], atol=1e-6)


def test_likelihood_loss_is_the_mean_over_the_whole_batch() -> None:
    logprobs = torch.tensor([-1.0, -2.0])
    assert likelihood_loss(logprobs, Totals(tokens=4, sequences=1)).item() == 0.75


def _diagnose(rows: list[Row], cut: Callable[[list[Row]], list[list[MicroBatch]]]) -> dict[str, float]:
    """Metrics from the sums of several ranks, each with its own micro-batches."""
    whole = Diagnostics(0, torch.device("cpu"))
    for batches in cut(rows):
        rank = Diagnostics(0, torch.device("cpu"))
        for batch in batches:
            logprobs, entropies, other = policy_tensors(batch, rows)
            kl = KLTerm(coef=0.1, reference=other, settings=KLSection(coef=0.1, replayed="exclude"))
            terms = policy_loss(logprobs, entropies, batch, totals_of(rows), LossSection(), kl=kl)
            rank.add(batch, terms, logprobs.detach(), entropies.detach(), before_step=True)
        whole.merge(rank.sums, rank.highest)
    return metrics(whole.sums, whole.highest, passes=1)


def test_diagnostics_equal_a_reference_and_do_not_depend_on_the_cut() -> None:
    rows = make_rows(foreign=3)  # fresh and replayed ones
    whole = _diagnose(rows, lambda given: [micro_batches(given, 1000)])
    # One micro-batch a row, dealt to two ranks; `policy_tensors` go by the index within all rows.
    split = _diagnose(rows, lambda given: [micro_batches(given, 30)[::2], micro_batches(given, 30)[1::2]])
    for name, value in whole.items():
        if name != "learner/useful_tokens":
            assert split[name] == pytest.approx(value, rel=1e-5), name

    own = [(policy_of(i, one), one) for i, one in enumerate(rows) if not one.foreign]
    logs = [scores[0].astype(np.float64) - one.rollout_logprobs for scores, one in own]
    ratios = np.exp(np.concatenate(logs))
    sequence = np.exp([log.sum() for log in logs])
    assert whole["learner/ratio_mean"] == pytest.approx(ratios.mean(), rel=1e-5)
    assert whole["learner/ratio_max"] == pytest.approx(ratios.max(), rel=1e-5)
    assert whole["learner/ess"] == pytest.approx(sequence.sum() ** 2 / (sequence**2).sum() / len(own), rel=1e-4)
    drift = (ratios - 1 - np.log(ratios)).mean()
    assert (whole["learner/drift_kl"], whole["learner/mismatch_kl"]) == pytest.approx((drift, drift), rel=1e-4)
    good = np.concatenate([one.advantages for _, one in own]) > 0
    assert whole["learner/good_log_ratio"] == pytest.approx(np.log(ratios)[good].mean(), rel=1e-4)
    logprobs = np.concatenate([scores[0] for scores, _ in own])
    assert whole["learner/good_logprob"] == pytest.approx(logprobs[good].mean(), rel=1e-5)
    advantages = np.concatenate([one.advantages for one in rows])
    assert whole["learner/advantage_std"] == pytest.approx(advantages.std(), rel=1e-5)
    corrections = np.concatenate([one.correction_weights for _, one in own])
    assert whole["learner/correction_weight"] == pytest.approx(corrections.mean(), rel=1e-5)
    assert whole["learner/dropped_tokens"] == pytest.approx((corrections == 0).mean())
    fresh = [scores for scores, one in own if not one.replayed]
    distance = np.concatenate([scores[0].astype(np.float64) - scores[2] for scores in fresh])
    assert whole["learner/kl"] == pytest.approx((np.exp(-distance) - 1 + distance).mean(), rel=1e-4)
    entropies = np.concatenate([scores[1] for scores, _ in own])
    assert whole["learner/entropy"] == pytest.approx(entropies.mean(), rel=1e-5)
    logs = [scores[0].astype(np.float64) - one.proximal_logprobs for scores, one in own]
    r, a = np.exp(np.concatenate(logs)), np.concatenate([one.advantages for _, one in own])
    clipped = ((r > 1.28) & (a > 0)) | ((r < 0.8) & (a < 0))
    assert whole["learner/clip_fraction"] == pytest.approx(clipped.mean())


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "cispo"])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_ratio_that_no_float32_holds_leaves_every_gradient_a_number(name: str, advantage: float, foreign: bool) -> None:
    """exp(100) is infinite, and infinity times the 0 of a clip would be no number."""
    one = replace(
        row(np.random.default_rng(0), 10, 2),
        rollout_logprobs=np.array([-101.0, -1.0], dtype=np.float32),
        advantages=np.full(2, advantage, dtype=np.float32),
        foreign=foreign,
    )
    (batch,) = micro_batches([one], 100)
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    section = LossSection(name=name, aggregation="token", dual_clip=None if name == "cispo" else 3.0)
    terms = policy_loss(logprobs, torch.zeros(2), batch, Totals(tokens=2, sequences=1), section)
    terms.loss.backward()
    if foreign:
        far, near = 0.0, 0.1 / 1.1**2
    elif name == "cispo":
        far, near = 5.0, 1.0
    else:
        far, near = 0.0, 0.0 if name == "gspo" else 1.0
    np.testing.assert_allclose(logprobs.grad.numpy(), np.array([far, near]) * -advantage / 2, rtol=1e-5, atol=1e-30)
    whole = Diagnostics(0, torch.device("cpu"))
    whole.add(batch, terms, logprobs.detach(), torch.zeros(2), before_step=True)
    assert torch.isfinite(whole.sums).all()


@pytest.mark.parametrize("how", [{}, {"foreign": True}, {"replayed": True}])
def test_a_token_that_the_policy_has_given_up_leaves_the_kl_a_number(how: dict[str, bool]) -> None:
    nothing = np.zeros(2, dtype=np.float32)
    one = replace(row(np.random.default_rng(0), 10, 2), rollout_logprobs=nothing - 1, advantages=nothing, **how)
    (batch,) = micro_batches([one], 100)
    logprobs = torch.tensor([-101.0, -1.5], requires_grad=True)
    term = KLTerm(coef=1.0, reference=torch.full((2,), -1.0), settings=KLSection(coef=1.0, replayed="exclude"))
    terms = policy_loss(logprobs, torch.zeros(2), batch, Totals(tokens=2, sequences=1), LossSection(), kl=term)
    terms.loss.backward()
    counted = 0.0 if how else 1.0
    np.testing.assert_allclose(logprobs.grad.numpy(), [0.0, counted * (1 - np.exp(0.5)) / 2], rtol=1e-5)


def test_what_was_not_measured_is_no_metric() -> None:
    """A mean KL of 0 would lower the weight of its term, an effective sample size of 0 the learning rate."""
    only_replayed = [replace(one, replayed=True) for one in make_rows()]
    assert "learner/kl" not in _diagnose(only_replayed, lambda given: [micro_batches(given, 1000)])
    nobody_of_ours = _diagnose(make_rows(foreign=6), lambda given: [micro_batches(given, 1000)])
    assert not {"learner/kl", "learner/ess"} & nobody_of_ours.keys()
