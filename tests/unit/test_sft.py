"""The warm start's order, schedule and data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from learner.demonstrations import Demonstrations
from learner.sft import batches, learning_rate
from learner_data import trajectory


def test_learning_rate_warms_up_and_decays_to_a_tenth() -> None:
    rates = [learning_rate(update, 100, 1.0) for update in range(100)]
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == 1.0
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)
    assert (np.diff(rates[5:]) <= 0).all()
    assert learning_rate(0, 1, 1.0) == 1.0


def test_batches_are_seeded_permutations() -> None:
    drawn = list(itertools.islice(batches(10, 4, seed=1), 5))
    assert sorted(itertools.chain.from_iterable(drawn)) == sorted(list(range(10)) * 2)
    assert drawn == list(itertools.islice(batches(10, 4, seed=1), 5))
    assert drawn != list(itertools.islice(batches(10, 4, seed=2), 5))
    assert len(next(batches(3, 8, seed=0))) == 8


def test_demonstrations_keep_tokens_and_masks() -> None:
    rng = np.random.default_rng(0)
    made = [trajectory(rng, name=str(index), prompt=3 + index) for index in range(3)]
    flat = Demonstrations.of(made)
    assert len(flat) == 3
    for index, one in enumerate(made):
        row = flat.row(index)
        np.testing.assert_array_equal(row.token_ids, one.token_ids)
        np.testing.assert_array_equal(row.positions, np.flatnonzero(one.loss_mask))
    with pytest.raises(ValueError, match="no trajectory"):
        Demonstrations.of([])
    with pytest.raises(ValueError, match="offsets end at 5"):
        Demonstrations(token_ids=flat.token_ids, loss_mask=flat.loss_mask, offsets=np.array([0, 5]))
