"""KL as a part of the reward: by hand, and what the config refuses."""

from __future__ import annotations

import numpy as np
import pytest

from cacherl.errors import ConfigError
from fakes import two_turns
from learner.kl_reward import with_kl
from reward_data import run_config


def test_every_turn_pays_for_its_own_tokens_by_hand():
    """Tokens -0.5, -1, -1.5 | -2, 0 under the policy, reference -1 each: excess 0.5, 0, -0.5 | -1, 1; then -0.5 on the third."""
    reference = np.full(5, -1.0, np.float32)
    played = with_kl(two_turns(), reference, 0.1)
    assert [turn.rewards["kl"] for turn in played.turns] == pytest.approx([0.0, 0.0])
    reference[2] = -3.0
    reference[4] = -2.0
    played = with_kl(two_turns(), reference, 0.1)
    assert [turn.rewards["kl"] for turn in played.turns] == pytest.approx([-0.2, -0.1])
    assert played.total_reward == pytest.approx(two_turns().total_reward - 0.3)
    assert played.turns[0].rewards == pytest.approx({"tool_use": 0.05, "step_penalty": -0.02, "kl": -0.2})


def test_a_policy_that_is_its_reference_pays_nothing():
    played = two_turns()
    same = with_kl(played, played.rollout_logprobs[played.loss_mask], 0.5)
    assert same.total_reward == pytest.approx(played.total_reward)


def test_what_somebody_else_said_pays_nothing():
    played = with_kl(two_turns(source="demonstration"), np.full(5, -9.0, np.float32), 0.5)
    assert played.reward_parts["kl"] == 0.0


@pytest.mark.parametrize(
    ("kl", "message"),
    [
        ({"placement": "reward"}, "placement reward has no effect without kl.coef above 0"),
        ({"coef": 0.1, "placement": "reward", "estimator": "k2"}, "estimator k2 has no effect without kl.placement loss"),
        ({"coef": 0.1, "placement": "reward", "target": 0.1}, "target 0.1 has no effect without kl.placement loss"),
        ({"coef": 0.1, "placement": "both"}, "kl.placement: Input should be 'loss' or 'reward'"),
    ],
)
def test_the_penalty_has_one_place(kl, message):
    with pytest.raises(ConfigError, match=message):
        run_config(kl=kl)


def test_no_other_part_may_be_named_kl():
    with pytest.raises(ConfigError, match=r"names \['kl'\] are taken"):
        run_config({"components": [{"path": "a.b", "name": "kl", "weight": 0.1}]})
