"""Rows, shards and micro-batches: what is padding, what is trained, who gets what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.batch import Row, empty_micro_batch, micro_batches, partition, row_of
from learner_data import row, trajectory


def test_row_takes_sampled_tokens_only() -> None:
    made = trajectory(np.random.default_rng(0), turns=((2, 3), (1, 0)), prompt=4, version=7, temperature=0.5)
    cut = row_of(made, advantage=1.5, is_weight=0.25)
    assert cut.positions.tolist() == [4, 5, 9]
    np.testing.assert_array_equal(cut.rollout_logprobs, made.rollout_logprobs[[4, 5, 9]])
    assert cut.advantages.tolist() == [1.5] * 3
    assert cut.policy_versions.tolist() == [7] * 3
    assert (cut.is_weight, cut.temperature) == (0.25, 0.5)


def test_a_row_may_have_an_advantage_per_token_and_says_who_acted() -> None:
    made = trajectory(np.random.default_rng(0), turns=((2, 3), (1, 0)))
    cut = row_of(made, np.array([0.5, -1.0, 2.0]), replayed=True)
    assert cut.advantages.tolist() == [0.5, -1.0, 2.0]
    assert (cut.replayed, cut.foreign, cut.proximal_logprobs) == (True, False, None)
    assert row_of(replace(made, source="demonstration")).foreign


def test_fields_of_the_wrong_length_are_refused() -> None:
    one = row(np.random.default_rng(0), 9, 3)
    with pytest.raises(ValueError, match="proximal_logprobs has 2 entries, positions 3"):
        replace(one, proximal_logprobs=np.zeros(2, np.float32))


def test_first_token_cannot_be_trained() -> None:
    made = trajectory(np.random.default_rng(0), turns=((3, 0),), prompt=0)
    with pytest.raises(ValueError, match="no predecessor"):
        row_of(made, advantage=1.0)


def test_collated_fields_by_hand() -> None:
    def build(tokens: list[int], positions: list[int], logprob: float, advantage: float, temperature: float) -> Row:
        count = len(positions)
        return Row(
            token_ids=np.array(tokens, dtype=np.int32),
            positions=np.array(positions),
            rollout_logprobs=np.full(count, logprob, dtype=np.float32),
            advantages=np.full(count, advantage, dtype=np.float32),
            policy_versions=np.full(count, 3, dtype=np.int32),
            is_weight=0.5,
            temperature=temperature,
        )

    # Token 0 is the pad's number too: padding follows from the lengths alone.
    rows = [build([5, 0, 7, 0], [1, 3], -1.0, 2.0, 0.5), build([8, 0, 9], [2], -2.0, -1.0, 1.0)]
    (batch,) = micro_batches(rows, max_tokens=100)
    assert batch.token_ids.tolist() == [[8, 0, 9, 0], [5, 0, 7, 0]]
    assert batch.lengths.tolist() == [3, 4]
    assert batch.indices.tolist() == [1, 0]
    assert batch.targets.tolist() == [9, 0, 0]
    assert batch.predictors.tolist() == [1, 4, 6]
    assert batch.rows.tolist() == [0, 1, 1]
    assert batch.inverse_temperatures.tolist() == [1.0, 2.0, 2.0]
    assert batch.rollout_logprobs.tolist() == [-2.0, -1.0, -1.0]
    assert batch.advantages.tolist() == [-1.0, 2.0, 2.0]
    assert batch.is_weights.tolist() == [0.5] * 3
    assert batch.policy_versions.tolist() == [3] * 3
    assert batch.trained_per_row.tolist() == [1, 2]
    assert (batch.num_real, batch.num_padded) == (7, 8)
    assert batch.proximal_logprobs.tolist() == [-2.0, -1.0, -1.0]  # by default the ratio is to the policy that sampled
    assert batch.correction_weights.tolist() == [1.0] * 3
    assert batch.position_ids is None
    assert batch.to(torch.device("cpu")) is batch


@given(st.lists(st.integers(2, 60), min_size=1, max_size=40), st.integers(60, 200))
def test_micro_batches_hold_every_row_once_within_the_limit(lengths: list[int], limit: int) -> None:
    rng = np.random.default_rng(0)
    rows = [row(rng, length, 1) for length in lengths]
    batches = micro_batches(rows, limit)
    assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(len(rows)))
    for batch in batches:
        assert batch.num_padded <= limit
        for place, index in enumerate(batch.indices.tolist()):
            assert batch.token_ids[place, : len(rows[index])].tolist() == rows[index].token_ids.tolist()


def test_bucketing_wastes_little() -> None:
    rng = np.random.default_rng(0)
    rows = [row(rng, int(length), 1) for length in rng.integers(60, 200, 128)]
    batches = micro_batches(rows, 2048)
    assert sum(batch.num_real for batch in batches) / sum(batch.num_padded for batch in batches) > 0.9


def test_a_row_longer_than_a_micro_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="30 tokens exceeds the micro-batch's 20"):
        micro_batches([row(np.random.default_rng(0), 30, 1)], 20)


def test_filler_trains_nothing() -> None:
    filler = empty_micro_batch()
    assert len(filler.targets) == 0
    assert filler.num_padded == 2


@given(st.lists(st.integers(1, 1000), max_size=64), st.integers(1, 8))
def test_partition_is_disjoint_covers_and_balances(costs: list[int], world: int) -> None:
    shards = partition(costs, world)
    assert len(shards) == world
    assert sorted(index for shard in shards for index in shard) == list(range(len(costs)))
    assert shards == partition(costs, world)
    loads = [sum(costs[index] for index in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_partition_with_fewer_items_than_ranks() -> None:
    assert partition([5], 3) == [[0], [], []]
