"""Off-policy corrections by hand and against references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacherl.learning_settings import CorrectionSection
from learner.batch import Row
from learner.correction import (
    correct,
    divergence,
    harmful,
    masked_weights,
    second_moment_threshold,
    sequence_weights,
    truncated_weights,
    within,
)
from learner_data import row

RATIOS = np.log([0.5, 1.0, 1.9, 2.1, 40.0])


def test_truncated_by_hand() -> None:
    np.testing.assert_allclose(truncated_weights(RATIOS, 2.0), [0.5, 1.0, 1.9, 2.0, 2.0])


def test_masked_by_hand() -> None:
    np.testing.assert_allclose(masked_weights(RATIOS, 2.0), [0.5, 1.0, 1.9, 0.0, 0.0])


def test_sequence_by_hand() -> None:
    np.testing.assert_allclose(sequence_weights(np.log([0.5, 1.5, 1.2]), 2.0, 1e-4), [0.9] * 3)
    np.testing.assert_allclose(sequence_weights(np.log([1.5, 1.5, 1.2]), 2.0, 1e-4), [2.0] * 3)
    np.testing.assert_allclose(sequence_weights(np.log([0.99e-4, 1e5, 1.0]), 2.0, 1e-4), [0.0] * 3)
    assert sequence_weights(np.full(5000, 1.0), 2.0, 1e-4)[0] == pytest.approx(2.0)
    assert sequence_weights(np.full(5000, -1.0), 2.0, 1e-4)[0] > 0  # far away, but nothing that overflows


def test_no_ratio_overflows() -> None:
    far = np.array([-1e4, 1e4])
    np.testing.assert_allclose(truncated_weights(far, 2.0), [0.0, 2.0])
    np.testing.assert_allclose(masked_weights(far, 2.0), [0.0, 0.0])


def test_harmful_tokens_go_on_in_the_direction_of_the_difference() -> None:
    log_w, advantages = np.array([0.1, -0.1, 0.1, -0.1, 0.0]), np.array([1.0, 1.0, -1.0, -1.0, 1.0], dtype=np.float32)
    assert harmful(log_w, advantages).tolist() == [True, False, False, True, False]


def test_threshold_by_hand() -> None:
    assert second_moment_threshold(np.array([0.01, 0.02, 0.03]), 0.04) == np.inf
    assert second_moment_threshold(np.array([0.09, 0.01, 0.05]), 0.04) == 0.05  # means 0.01, 0.03, 0.05
    assert second_moment_threshold(np.array([0.5, 0.9]), 0.04) == -1.0
    assert second_moment_threshold(np.zeros(0), 0.04) == np.inf


@given(st.lists(st.floats(0, 2), max_size=30), st.floats(0.01, 1))
def test_threshold_keeps_the_most_that_the_limit_allows(squares: list[float], limit: float) -> None:
    values = np.array(squares)
    threshold = second_moment_threshold(values, limit)
    kept = np.sort(values)[values[np.argsort(values)] <= threshold]
    # Equal values stand or fall together, so one copy may be over the limit; without them the mean is within it.
    assert not len(kept) or np.mean(kept[kept < threshold] if (kept < threshold).any() else kept[:1]) <= limit * (1 + 1e-9)
    rest = np.sort(values[values > threshold])
    assert not len(rest) or np.mean([*kept, rest[0]]) > limit


def test_within_is_about_the_geometric_mean() -> None:
    assert within(np.log([9.0, 1.0]), 3.0)
    assert not within(np.log([9.1, 1.0]), 3.0)
    assert not within(np.log([1 / 9.1, 1.0]), 3.0)
    assert within(np.zeros(0), 3.0)


def test_what_somebody_else_played_has_not_diverged() -> None:
    log_ratios = np.array([0.2, -0.4, 7.0])
    assert divergence(log_ratios, np.array([False, False, True])) == pytest.approx(0.3)
    assert divergence(log_ratios, np.array([True, True, True])) == 0.0


def make_rows() -> tuple[list[Row], list[np.ndarray]]:
    rng = np.random.default_rng(5)
    rows = [row(rng, 20, 6) for _ in range(4)]
    rows[3] = replace(rows[3], foreign=True)
    return rows, [(one.rollout_logprobs + 0.6 * rng.standard_normal(6)).astype(np.float32) for one in rows]


@pytest.mark.parametrize("method", ["none", "truncated", "masked", "sequence", "m2po"])
def test_rows_get_weights_and_only_decoupled_ones_another_ratio(method: str) -> None:
    rows, proximal = make_rows()
    corrected = correct(rows, proximal, CorrectionSection(method=method), lambda values: values)
    assert corrected[3] is rows[3]  # nobody knows the ratio of a foreign row
    for before, after, scores in zip(rows[:3], corrected, proximal, strict=False):
        w = np.exp(scores.astype(np.float64) - before.rollout_logprobs)
        expected = {
            "none": np.ones(6),
            "truncated": np.minimum(w, 2),
            "masked": w * (w <= 2),
            "sequence": np.full(6, min(w.prod(), 2)),
        }
        if method != "m2po":
            np.testing.assert_allclose(after.correction_weights, expected[method], rtol=1e-5)
        decoupled = method in ("truncated", "masked", "sequence")
        assert (after.proximal_logprobs is scores) if decoupled else (after.proximal_logprobs is None)
        assert after.advantages is before.advantages
        assert after.is_weight == before.is_weight


def test_m2po_judges_the_harmful_tokens_of_all_ranks_together() -> None:
    rows, proximal = make_rows()
    settings = CorrectionSection(method="m2po", second_moment=0.2)
    asked: list[np.ndarray] = []

    def gather(values: np.ndarray) -> np.ndarray:
        asked.append(values)
        return np.concatenate([values, np.full(40, 0.01)])  # another rank, whose tokens are close to the policy

    alone = correct(rows, proximal, settings, lambda values: values)
    together = correct(rows, proximal, settings, gather)
    log_w = np.concatenate([p.astype(np.float64) - r.rollout_logprobs for p, r in zip(proximal[:3], rows, strict=False)])
    advantages = np.concatenate([one.advantages for one in rows[:3]])
    mask = log_w * advantages > 0
    np.testing.assert_allclose(np.sort(asked[0]), np.sort(log_w[mask] ** 2))
    kept = np.concatenate([one.correction_weights for one in alone[:3]]) == 1
    assert kept[~mask].all()
    assert not kept.all()
    assert (log_w[mask & kept] ** 2).mean() <= 0.2
    dropped = (log_w[mask & ~kept] ** 2).min()
    assert (log_w[mask & kept] ** 2).max() < dropped
    assert np.append(log_w[mask & kept] ** 2, dropped).mean() > 0.2
    both = np.concatenate([one.correction_weights for one in together[:3]]) == 1
    assert both.sum() > kept.sum()  # the other rank's tokens leave room for more


def test_keep_within_drops_whole_rows_whatever_the_method() -> None:
    rows, _ = make_rows()
    proximal = [one.rollout_logprobs + np.float32(shift) for one, shift in zip(rows, [0.0, 1.2, -1.2, 5.0], strict=True)]
    for method in ("none", "truncated"):
        corrected = correct(rows, proximal, CorrectionSection(method=method, keep_within=3.0), lambda values: values)
        assert [None if one.correction_weights is None else one.correction_weights.any() for one in corrected] == [
            True, False, False, None,
        ]  # fmt: skip


def test_no_rows_are_no_trouble() -> None:
    asked = []
    assert correct([], [], CorrectionSection(method="m2po"), lambda values: asked.append(values) or values) == []
    assert len(asked) == 1  # the other ranks wait for this one
