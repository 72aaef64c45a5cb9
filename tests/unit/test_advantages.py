"""Group advantages against a float64 reference and their invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.advantages import group_advantages

returns = st.lists(st.floats(-5, 5), min_size=2, max_size=16).map(np.array)


def test_standardised_by_hand() -> None:
    # mean 0.5, population standard deviation 0.5
    values = group_advantages(np.array([1.0, 0.0, 0.0, 1.0]), normalize_std=True, epsilon=0.0)
    np.testing.assert_array_equal(values, [1.0, -1.0, -1.0, 1.0])


def test_mean_only_by_hand() -> None:
    values = group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), normalize_std=False, epsilon=1e-6)
    np.testing.assert_array_equal(values, [0.75, -0.25, -0.25, -0.25])


def test_epsilon_is_added_to_the_standard_deviation() -> None:
    values = group_advantages(np.array([1.0, 0.0]), normalize_std=True, epsilon=0.5)
    np.testing.assert_allclose(values, [0.5, -0.5])


@pytest.mark.parametrize("normalize_std", [True, False])
def test_a_group_of_one_or_without_variance_has_no_advantage(normalize_std: bool) -> None:
    for group in ([3.0], [0.1, 0.1, 0.1]):
        values = group_advantages(np.array(group), normalize_std=normalize_std, epsilon=1e-6)
        np.testing.assert_array_equal(values, np.zeros(len(group)))


@given(returns, st.booleans())
def test_they_sum_to_zero_and_keep_the_order(group: np.ndarray, normalize_std: bool) -> None:
    values = group_advantages(group, normalize_std=normalize_std, epsilon=1e-6)
    assert abs(values.sum()) < 1e-9 * max(1.0, np.abs(values).max() * len(values))
    order = np.argsort(group, kind="stable")
    assert (np.diff(values[order]) >= 0).all()


@given(returns)
def test_standardised_ones_do_not_depend_on_scale_and_offset(group: np.ndarray) -> None:
    if group.std() < 1e-3:
        return
    plain = group_advantages(group, normalize_std=True, epsilon=0.0)
    moved = group_advantages(3.0 * group + 7.0, normalize_std=True, epsilon=0.0)
    np.testing.assert_allclose(plain, moved, atol=1e-9)


def test_bad_returns_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages(np.array([1.0, np.nan]), normalize_std=True, epsilon=1e-6)
    with pytest.raises(ValueError, match=r"\[G\] with G >= 1"):
        group_advantages(np.zeros(0), normalize_std=True, epsilon=1e-6)
