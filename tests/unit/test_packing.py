"""Packed rows: every token where it belongs, and the same log-probabilities as padded ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from cacherl.learner_settings import LearnerSection
from learner.batch import MicroBatch, Row, micro_batches
from learner.packing import cut, fill_lines, packed_batches
from learner.policy_model import PolicyModel, load_policy
from learner_data import VOCABULARY, row, tiny_model


def rows_like(lengths: list[int]) -> list[Row]:
    rng = np.random.default_rng(1)
    return [row(rng, length, max(1, length // 3), temperature=0.7 + 0.1 * (length % 3)) for length in lengths]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(60, 200))
def test_lines_hold_every_row_once_within_their_width(lengths: list[int], width: int) -> None:
    lines = fill_lines(lengths, width)
    assert sorted(index for line in lines for index in line) == list(range(len(lengths)))
    filled = [sum(lengths[index] for index in line) for line in lines]
    assert max(filled) <= width
    assert filled == sorted(filled, reverse=True)
    assert len(lines) <= 11 / 9 * -(-sum(lengths) // width) * 1.5 + 1


@given(st.lists(st.integers(2, 60), min_size=1, max_size=40), st.integers(60, 300), st.sampled_from([None, 1, 5]))
def test_packed_batches_hold_every_token_at_its_place(lengths: list[int], limit: int, most: int | None) -> None:
    rows = rows_like(lengths)
    batches = packed_batches(rows, limit, most)
    assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(len(rows)))
    for batch in batches:
        assert batch.num_padded <= limit
        assert len(batch.lengths) <= (most or len(rows))
        flat, positions = batch.token_ids.flatten(), batch.position_ids.flatten()
        trained = np.split(batch.predictors.numpy(), np.cumsum(batch.trained_per_row.numpy())[:-1])
        for index, places in zip(batch.indices.tolist(), trained, strict=True):
            one = rows[index]
            begin = places[0] - one.positions[0] + 1
            assert flat[begin : begin + len(one)].tolist() == one.token_ids.tolist()
            assert positions[begin : begin + len(one)].tolist() == list(range(len(one)))
            assert (places - begin + 1).tolist() == one.positions.tolist()
        assert batch.targets.tolist() == flat[batch.predictors + 1].tolist()


def test_little_is_padding() -> None:
    lengths = np.random.default_rng(0).integers(60, 200, 128).tolist()
    for limit in (2048, 16_384):
        batches = packed_batches(rows_like(lengths), limit)
        assert sum(batch.num_real for batch in batches) / sum(batch.num_padded for batch in batches) > 0.93


def test_a_row_longer_than_a_micro_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="30 tokens exceeds the micro-batch's 20"):
        packed_batches(rows_like([30]), 20)


def test_the_settings_decide() -> None:
    rows = rows_like([10, 20, 30, 12])
    assert cut(rows, LearnerSection())[0].position_ids is None
    assert cut(rows, LearnerSection(packing=True))[0].position_ids is not None
    assert [len(batch.lengths) for batch in cut(rows, LearnerSection(packing=True, mini_batch_size=3))] == [3, 1]
    assert [len(batch.lengths) for batch in cut(rows, LearnerSection(mini_batch_size=3))] == [3, 1]
    assert cut([], LearnerSection(packing=True)) == []


def scores(model: PolicyModel, batches: list[MicroBatch], count: int) -> list[np.ndarray]:
    found: list[np.ndarray] = [np.zeros(0)] * count
    for batch in batches:
        logprobs, entropies = model(batch)
        both = torch.stack([logprobs, entropies]).detach().numpy()
        parts = np.split(both, np.cumsum(batch.trained_per_row.numpy())[:-1], axis=1)
        for index, part in zip(batch.indices.tolist(), parts, strict=True):
            found[index] = part
    return found


def llama(directory: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("build", [tiny_model, llama])
def test_log_probabilities_are_those_of_padded_rows_and_of_each_row_alone(tmp_path: Path, build: object) -> None:
    model = load_policy(build(tmp_path / "model"), torch.float32)  # type: ignore[operator]
    rows = rows_like([9, 30, 17, 30, 5, 22, 40, 11])
    packed = scores(model, packed_batches(rows, 200), len(rows))
    padded = scores(model, micro_batches(rows, 200), len(rows))
    alone = scores(model, micro_batches(rows, 200, 1), len(rows))
    for one, other, third in zip(packed, padded, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
        np.testing.assert_allclose(one, third, atol=2e-6)


def test_gradients_are_those_of_padded_rows(tmp_path: Path) -> None:
    rows = rows_like([9, 30, 17, 30, 5, 22])
    gradients = []
    for batches in (packed_batches(rows, 120), micro_batches(rows, 120)):
        model = load_policy(tiny_model(tmp_path / "model"), torch.float32)
        for batch in batches:
            (model(batch)[0] * batch.advantages).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[1].norm()
