"""KL as a part of the reward: by hand, and what the config refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from cacherl.errors import ConfigError
from fakes import two_turns
from learner.kl_reward import KLReward, with_kl
from learner.policy_model import load_policy
from learner_data import group, tiny_model
from replay_service.plan import PlanEntry
from reward_data import run_config


def entry(name: str) -> PlanEntry:
    """A drawn group of which nothing but its name matters."""
    share = {"priority": 1.0, "probability": 1.0, "inclusion": 1.0, "is_weight": 1.0}
    counts = {"version": 0, "max_version": 0, "trajectories": 1, "tokens": 1, "bytes": 1, "uses": 0}
    return PlanEntry(group_id=name, **share, **counts)


def test_every_turn_pays_for_its_own_tokens_by_hand():
    """Tokens -0.5, -1, -1.5 | -2, 0 under the policy, reference -1 each: excess 0.5, 0, -0.5 | -1, 1, which cancel.

    With the third token at -3 and the last at -2 under the reference: excess 0.5 + 0 + 1.5 = 2 and -1 + 2 = 1.
    """
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


def test_groups_are_scored_by_the_reference_at_their_own_temperature(tmp_path):
    """Against a plain forward of the model and a log-softmax, token by token, over groups of different lengths."""
    rng = np.random.default_rng(0)
    model = load_policy(tiny_model(tmp_path / "model"), torch.float32).requires_grad_(False)
    plain = Qwen3ForCausalLM.from_pretrained(tmp_path / "model").eval()
    config = run_config(kl={"coef": 0.5, "placement": "reward"})
    groups = [group(rng, "a"), group(rng, "b", size=3)]
    groups[0] = replace(groups[0], trajectories=tuple(replace(m, temperature=0.7) for m in groups[0].trajectories))
    entries = [entry(name) for name in "ab"]
    paid = KLReward(model, config, torch.device("cpu"))(list(zip(entries, groups, strict=True)))
    assert [(given.group_id, got.group_id, len(got)) for given, got in paid] == [("a", "a", 4), ("b", "b", 3)]
    for before, (_, after) in zip(groups, paid, strict=True):
        for member, with_part in zip(before.trajectories, after.trajectories, strict=True):
            ids = torch.from_numpy(member.token_ids.astype(np.int64))
            with torch.no_grad():
                scores = torch.log_softmax(plain(ids[None]).logits[0, :-1] / member.temperature, -1)
            chosen = scores[torch.arange(len(ids) - 1), ids[1:]].numpy()
            for turn in with_part.turns:
                span = slice(*turn.completion)
                reference = chosen[turn.completion[0] - 1 : turn.completion[1] - 1]
                expected = -0.5 * float((member.rollout_logprobs[span] - reference).sum())
                assert turn.rewards["kl"] == pytest.approx(expected, abs=1e-4)
            assert with_part.total_reward == pytest.approx(member.total_reward + with_part.reward_parts["kl"])


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
