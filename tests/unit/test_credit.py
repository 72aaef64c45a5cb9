"""Estimators of advantages by hand, against references, and on whole groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacherl.learning_settings import AdvantageSection
from cacherl.trajectory import TrajectoryGroup
from learner.advantages import (
    joint_advantages,
    leave_one_out,
    separate_advantages,
    state_advantages,
    turn_returns,
    weighted_advantages,
)
from learner.credit import member_advantages, token_advantages, turn_rewards
from learner_data import trajectory

returns = st.lists(st.floats(-5, 5), min_size=1, max_size=16).map(np.array)
CENTRED = {"normalize_std": False, "epsilon": 1e-6}
SCALED = {"normalize_std": True, "epsilon": 1e-6}


@given(returns)
def test_leave_one_out_subtracts_the_mean_of_the_others(group: np.ndarray) -> None:
    values = leave_one_out(group, **CENTRED)
    others = [group[i] - np.mean(np.delete(group, i)) if len(group) > 1 else 0.0 for i in range(len(group))]
    np.testing.assert_allclose(values, others, atol=1e-9)


def test_separate_normalises_each_part_by_itself() -> None:
    group, foreign = np.array([0.0, 1.0, 5.0, 7.0]), np.array([False, False, True, True])
    np.testing.assert_allclose(separate_advantages(group, foreign, **SCALED), [-1, 1, -1, 1], rtol=1e-5)
    np.testing.assert_allclose(separate_advantages(group, foreign, **CENTRED), [-0.5, 0.5, -1, 1])
    one = np.array([False, False, False, True])  # a single stand-in has no siblings of its own kind
    np.testing.assert_allclose(separate_advantages(np.array([0.0, 0.0, 0.0, 1.0]), one, **SCALED), 0)


def test_joint_only_centres_where_a_stand_in_is_among_them() -> None:
    group, stand_in = np.array([0.0, 0.0, 0.0, 1.0]), np.array([False, False, False, True])
    np.testing.assert_allclose(joint_advantages(group, stand_in, **SCALED), [-0.25, -0.25, -0.25, 0.75])
    scaled = joint_advantages(group, np.zeros(4, bool), **SCALED)
    np.testing.assert_allclose(scaled, np.array([-0.25, -0.25, -0.25, 0.75]) / np.sqrt(3) * 4, rtol=1e-4)


def test_weighted_by_hand() -> None:
    group, log_ratios = np.array([1.0, 0.0]), np.log([3.0, 1.0])
    values = weighted_advantages(group, log_ratios, **CENTRED, min_ess=0.5)
    np.testing.assert_allclose(values, [0.25, -0.75])  # baseline 3/4
    scaled = weighted_advantages(group, log_ratios, normalize_std=True, epsilon=0.0, min_ess=0.5)
    np.testing.assert_allclose(scaled, np.array([0.25, -0.75]) / np.sqrt(0.75 * 0.25**2 + 0.25 * 0.75**2))


def test_weighted_limits_ratios_and_falls_back_where_few_members_would_decide() -> None:
    group = np.array([1.0, 0.0])
    far = weighted_advantages(group, np.array([50.0, -50.0]), **CENTRED, min_ess=0.1)
    np.testing.assert_allclose(far, [1 - 10 / 10.1, -10 / 10.1])
    assert weighted_advantages(group, np.array([50.0, -50.0]), **CENTRED, min_ess=0.6).tolist() == [0.5, -0.5]


@given(returns, st.booleans())
def test_weighted_with_equal_ratios_is_the_plain_one(group: np.ndarray, normalize_std: bool) -> None:
    values = weighted_advantages(group, np.full(len(group), 0.7), normalize_std=normalize_std, epsilon=1e-6, min_ess=0.9)
    centred = group - group.mean()
    plain = centred / (group.std() + 1e-6) if normalize_std else centred
    np.testing.assert_allclose(values, plain if np.ptp(group) else 0, atol=1e-6)


def test_turn_returns_discount_what_follows() -> None:
    np.testing.assert_allclose(turn_returns([1.0, 0.0, 4.0], 0.5), [2.0, 2.0, 4.0])
    assert len(turn_returns([], 0.5)) == 0


def test_equal_states_are_compared_by_what_followed() -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0], [0.0]]
    states = [["start", "shop"], ["start", "cafe"], ["shop"]]
    first, second, third = state_advantages(rewards, states, gamma=0.5, **CENTRED)
    np.testing.assert_allclose(first, [0.25, 0.5])  # returns from 'start': 0.5 and 0; from 'shop': 1 and 0
    np.testing.assert_allclose(second, [-0.25, 0.0])  # alone in 'cafe'
    np.testing.assert_allclose(third, [-0.5])
    unknown = state_advantages([[1.0], [0.0]], [[""], [""]], gamma=0.5, **CENTRED)
    np.testing.assert_allclose(np.concatenate(unknown), 0)


def make_group() -> TrajectoryGroup:
    rng, members = np.random.default_rng(0), []
    for index, turns in enumerate([((2, 3), (1, 0)), ((4, 1),), ((1, 1), (2, 2), (3, 0))]):
        made = trajectory(rng, name=f"m{index}", turns=turns, reward=float(index == 0))
        states = ["start", "a", "b"]
        hashed = tuple(
            replace(turn, state_hash=states[number], rewards={"step": -0.1}) for number, turn in enumerate(made.turns)
        )
        members.append(replace(made, turns=hashed))
    return TrajectoryGroup(group_id="g", task_id="task", trajectories=tuple(members))


def test_tokens_share_their_trajectorys_advantage() -> None:
    values = token_advantages(make_group(), AdvantageSection(normalize_std=False))
    total = np.array([0.8, -0.1, -0.3])
    for one, value, count in zip(values, total - total.mean(), (3, 4, 6), strict=True):
        np.testing.assert_allclose(one, np.full(count, value))


def test_the_trajectorys_own_reward_belongs_to_its_last_turn() -> None:
    group = make_group()
    assert turn_rewards(group.trajectories[0]) == pytest.approx([-0.1, 0.9])
    assert turn_rewards(group.trajectories[2]) == pytest.approx([-0.1] * 3)


def test_gigpo_adds_the_turns_advantage_among_equal_states() -> None:
    section = AdvantageSection(estimator="gigpo", normalize_std=False, gamma=0.5, step_weight=2.0)
    values = token_advantages(make_group(), section)
    total = np.array([0.8, -0.1, -0.3])
    whole = total - total.mean()
    start = np.array([-0.1 + 0.5 * 0.9, -0.1, -0.1 - 0.05 - 0.025])
    second = np.array([0.9, -0.1 - 0.05])  # state 'a': members 0 and 2
    start, second = start - start.mean(), second - second.mean()
    np.testing.assert_allclose(values[0], [whole[0] + 2 * start[0]] * 2 + [whole[0] + 2 * second[0]])
    np.testing.assert_allclose(values[1], [whole[1] + 2 * start[1]] * 4)
    np.testing.assert_allclose(values[2], [whole[2] + 2 * start[2]] + [whole[2] + 2 * second[1]] * 2 + [whole[2]] * 3)


@pytest.mark.parametrize("baseline", ["frozen", "separate", "joint", "weighted"])
def test_baselines_differ_only_where_something_differs(baseline: str) -> None:
    group, section = make_group(), AdvantageSection(baseline=baseline)
    plain = token_advantages(group, AdvantageSection())
    for one, other in zip(token_advantages(group, section), plain, strict=True):
        np.testing.assert_array_equal(one, other)
    foreign = replace(group, trajectories=(replace(group.trajectories[0], source="demonstration"), *group.trajectories[1:]))
    changed = token_advantages(foreign, section, np.array([1.0, 0.0, 0.5]))
    same = all(np.array_equal(one, other) for one, other in zip(changed, plain, strict=True))
    assert same == (baseline == "frozen")


def test_a_members_advantage_is_the_mean_size_of_its_tokens_with_their_sign() -> None:
    assert member_advantages([np.array([1.0, -3.0]), np.array([4.0, -2.0]), np.zeros(0)]).tolist() == [-2.0, 3.0, 0.0]
