"""The critic: generalised advantages over turns and the clipped value loss, against references."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cacherl.config import parse_config
from cacherl.errors import ConfigError
from cacherl.learning_settings import AdvantageSection, LossSection, ValueSection
from deploy.priority import FreshPriority
from fakes import group_of, two_turns
from learner.batch import micro_batches
from learner.credit import critic_advantages, td_errors
from learner.loss import CriticTerm, Totals, policy_loss
from learner.policy_model import load_policy
from learner.value import turn_advantages, value_loss
from learner_data import row, tiny_model

turns = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=8)


@given(turns, st.floats(0.1, 1), st.floats(0, 1))
def test_advantages_are_the_weighted_sum_of_all_later_errors(
    pairs: list[tuple[float, float]], gamma: float, lam: float
) -> None:
    rewards, values = [pair[0] for pair in pairs], np.array([pair[1] for pair in pairs])
    errors = rewards + gamma * np.append(values[1:], 0.0) - values
    expected = [
        sum((gamma * lam) ** (later - turn) * errors[later] for later in range(turn, len(pairs))) for turn in range(len(pairs))
    ]
    np.testing.assert_allclose(turn_advantages(rewards, values, gamma=gamma, lam=lam), expected, atol=1e-9)


@given(turns, st.floats(0.1, 1))
def test_lam_1_trusts_the_returns(pairs: list[tuple[float, float]], gamma: float) -> None:
    rewards, values = [pair[0] for pair in pairs], np.array([pair[1] for pair in pairs])
    returns = [sum(gamma ** (later - turn) * rewards[later] for later in range(turn, len(pairs))) for turn in range(len(pairs))]
    np.testing.assert_allclose(turn_advantages(rewards, values, gamma=gamma, lam=1.0) + values, returns, atol=1e-9)


def test_tokens_of_a_turn_share_what_the_value_before_its_first_token_gives() -> None:
    # Completions of three and two tokens; turn rewards 0.03 and -0.02 + 1.0.
    section = AdvantageSection(estimator="gae", gamma=0.9, lam=0.5)
    advantages, targets = critic_advantages(two_turns(), np.array([0.5, 9.0, 9.0, 0.25, 9.0]), section)
    second = 0.98 - 0.25
    first = 0.03 + 0.9 * 0.25 - 0.5 + 0.45 * second
    np.testing.assert_allclose(advantages, [first] * 3 + [second] * 2)
    np.testing.assert_allclose(targets, [first + 0.5] * 3 + [0.98] * 2)


def test_value_loss_and_its_gradient_equal_the_reference() -> None:
    values = torch.tensor([0.1, 0.5, 0.9, -0.5], requires_grad=True)
    before, targets = torch.tensor([0.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 1.0])
    losses = value_loss(values, before, targets, 0.2)
    losses.sum().backward()
    # Moved further than 0.2 towards the target: the clipped value counts, without a gradient; away from it: the plain one.
    np.testing.assert_allclose(losses.detach().numpy(), [0.405, 0.32, 0.405, 1.125], rtol=1e-6)
    np.testing.assert_allclose(values.grad.numpy(), [-0.9, 0.0, 0.9, -1.5], rtol=1e-6)


def test_the_critics_loss_is_weighted_as_the_tokens_are() -> None:
    rng = np.random.default_rng(0)
    old, targets = rng.standard_normal(4).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    one = replace(row(rng, 10, 4, is_weight=0.5), old_values=old, value_targets=targets)
    (batch,) = micro_batches([one], 100)
    values = torch.from_numpy(rng.standard_normal(4).astype(np.float32)).requires_grad_()
    given_, totals = batch.rollout_logprobs.clone(), Totals(tokens=8, sequences=2)
    plain = policy_loss(given_, torch.zeros(4), batch, totals, LossSection())
    critic = CriticTerm(values=values, settings=ValueSection(coef=0.3, clip_range=0.2))
    terms = policy_loss(given_, torch.zeros(4), batch, totals, LossSection(), critic=critic)
    terms.loss.backward()
    v, o, r = values.detach().double().numpy(), old.astype(np.float64), targets.astype(np.float64)
    free, limited = (v - r) ** 2, (o + np.clip(v - o, -0.2, 0.2) - r) ** 2
    assert terms.value.item() == pytest.approx(0.5 * np.maximum(free, limited).sum() / 2 / 8, rel=1e-5)
    assert terms.loss.item() == pytest.approx(plain.loss.item() + 0.3 * terms.value.item(), rel=1e-5)
    slope = np.where(free >= limited, v - r, np.where(np.abs(v - o) <= 0.2, v - r, 0.0))
    np.testing.assert_allclose(values.grad.numpy(), 0.3 * 0.5 / 8 * slope, rtol=1e-5, atol=1e-8)


def test_the_value_head_is_no_part_of_the_policy(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    plain, valued = load_policy(folder, torch.float32), load_policy(folder, torch.float32, critic=True)
    assert set(valued.named_weights()) == set(plain.named_weights())
    (batch,) = micro_batches([row(np.random.default_rng(0), 10, 4)], 100)
    logprobs, entropies, values = valued(batch)
    torch.testing.assert_close((logprobs, entropies), plain(batch))
    assert values.tolist() == [0.0] * 4
    assert sum(p.numel() for p in valued.parameters()) - sum(p.numel() for p in plain.parameters()) == 65


def test_with_a_critic_every_fresh_group_may_be_sampled() -> None:
    same = group_of(two_turns(), two_turns())
    assert FreshPriority(parse_config({}))(same) == 0.0
    assert FreshPriority(parse_config({"advantage": {"estimator": "gae"}}))(same) == 1.0
    assert FreshPriority(parse_config({"advantage": {"estimator": "gae"}}))(group_of(two_turns())) == 1.0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"advantage": {"lam": 0.5}}, "lam 0.5 has no effect without advantage.estimator gae"),
        ({"value": {"coef": 0.1}}, "coef 0.1 has no effect without advantage.estimator gae"),
        ({"advantage": {"estimator": "gae", "zero_variance": "return"}}, "zero_variance return has no effect"),
        ({"advantage": {"estimator": "gae", "baseline": "joint"}}, "alternative of estimator group, not of gae"),
    ],
)
def test_settings_without_an_effect_are_refused(sections: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(sections)


def test_td_errors_by_hand() -> None:
    """Rewards 0.03 and 0.98; the critic says 0.5 before the first turn and 0.25 before the second."""
    errors = td_errors(two_turns(), np.array([0.5, 9.0, 9.0, 0.25, 9.0]), gamma=0.9)
    np.testing.assert_allclose(errors, [0.03 + 0.9 * 0.25 - 0.5, 0.98 - 0.25])
