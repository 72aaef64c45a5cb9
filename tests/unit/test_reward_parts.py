"""Shares of the reward's parts, computed by hand and as properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cacherl.learning_settings import AdvantageSection
from fakes import group_of, two_turns
from learner.advantages import group_advantages
from learner.reward_parts import GroupParts, compared_parts, group_parts, part_metrics, variance_shares
from learner.stats import RankStats, merge


def parts(**columns: list[float]) -> GroupParts:
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


# Returns 1.1, 0.1, 0.1, 1.1: all of the variance is the outcome's.
BY_OUTCOME = parts(final=[1, 0, 0, 1], tool_use=[0.1, 0.1, 0.1, 0.1])
# Returns 0.4, 0.2: all of it is the tools'.
BY_TOOLS = parts(final=[0, 0], tool_use=[0.4, 0.2])


def test_members_are_aligned_and_a_part_that_one_lacks_is_zero_there() -> None:
    group = group_of(two_turns(), two_turns(rewards={"final": 0.0, "bonus": 0.5}))
    found = group_parts(group.trajectories)
    assert {name: column.tolist() for name, column in found.items()} == {
        "final": [1.0, 0.0],
        "tool_use": [0.05, 0.05],
        "step_penalty": [-0.04, -0.04],
        "bonus": [0.0, 0.5],
    }


def test_a_missing_judgement_is_not_a_score_of_zero() -> None:
    """Two scores of 0.2 and 0.4, and a missing one that was given their mean."""
    scores = [{"judge": 0.2}, {"judge": 0.4}, {"judge_missing": 0.3}]
    parts_of = group_parts([two_turns(turns=two_turns().turns, rewards=rewards) for rewards in scores])
    values = part_metrics([parts_of, parts(final=[1.0, 0.0])], normalize_std=True)
    assert [values[f"reward_batch/{kind}/judge"] for kind in ("mean", "min", "max")] == pytest.approx([0.3, 0.2, 0.4])
    assert values["reward_batch/mean/judge_missing"] == pytest.approx(0.3)
    shares = variance_shares([parts_of], normalize_std=True)
    assert shares["judge"] + shares["judge_missing"] == pytest.approx(1.0)


def test_metrics_of_a_batch_by_hand() -> None:
    values = part_metrics([BY_OUTCOME, parts(final=[0, 0], tool_use=[-0.6, 0.2])], normalize_std=False)
    assert values == pytest.approx(
        {
            "reward_batch/mean/final": 2 / 6,
            "reward_batch/min/final": 0.0,
            "reward_batch/max/final": 1.0,
            "reward_batch/share/final": 2 / 3.2,
            "reward_batch/mean/tool_use": 0.0,
            "reward_batch/min/tool_use": -0.6,
            "reward_batch/max/tool_use": 0.2,
            "reward_batch/share/tool_use": 1.2 / 3.2,
            "reward_batch/variance_share/final": 1.0 / 1.32,
            "reward_batch/variance_share/tool_use": 0.32 / 1.32,
        }
    )


def test_a_small_difference_counts_as_much_as_a_large_one_where_advantages_are_normalised() -> None:
    shares = variance_shares([BY_OUTCOME, BY_TOOLS], normalize_std=True)
    assert shares == pytest.approx({"final": 0.5, "tool_use": 0.5})
    centred = variance_shares([BY_OUTCOME, BY_TOOLS], normalize_std=False)
    assert centred == pytest.approx({"final": 1 / 1.02, "tool_use": 0.02 / 1.02})


def test_a_part_that_pulls_against_the_others_has_a_negative_share() -> None:
    shares = variance_shares([parts(final=[1, 0], tool_use=[-0.5, 0.0])], normalize_std=True)
    assert shares == pytest.approx({"final": 2.0, "tool_use": -1.0})


def test_what_is_not_compared_does_not_hide_what_is() -> None:
    """A demonstration succeeds beside two failures that differ in their tools: with baseline separate only these do move."""
    own = [two_turns(outcome=0.0, rewards={"final": 0.0, "bonus": bonus}) for bonus in (0.0, 0.3)]
    group = group_of(*own, two_turns(source="demonstration", rewards={"final": 1.0, "bonus": 0.0}))
    shares = [
        variance_shares(compared_parts(group, AdvantageSection(baseline=baseline)), normalize_std=True)
        for baseline in ("frozen", "separate")
    ]
    assert shares[0]["final"] > 1.0
    assert shares[1]["bonus"] == pytest.approx(1.0)
    assert [sum(share.values()) for share in shares] == pytest.approx([1.0, 1.0])


def test_groups_without_variance_have_no_shares() -> None:
    rounding = parts(a=[0.1, 0.3], b=[0.2, 0.0])  # 0.30000000000000004 and 0.3
    assert variance_shares([rounding, parts(a=[1.0])], normalize_std=True) == {}
    assert "reward_batch/variance_share/a" not in part_metrics([rounding], normalize_std=True)
    assert part_metrics([parts(a=[0.0, 0.0])], normalize_std=True)["reward_batch/share/a"] == 0.0
    assert part_metrics([], normalize_std=True) == {}


columns = arrays(np.float64, 4, elements=st.floats(-2, 2, width=16))


@given(st.lists(st.fixed_dictionaries({"final": columns, "tools": columns}), min_size=1, max_size=4), st.booleans())
def test_shares_are_those_of_the_squared_advantages(groups: list[GroupParts], normalize_std: bool) -> None:
    shares = variance_shares(groups, normalize_std=normalize_std)
    kept = [group for group in groups if np.ptp(group["final"] + group["tools"]) > 1e-9]
    if not kept:
        assert shares == {}
        return
    assert sum(shares.values()) == pytest.approx(1.0)
    inner, whole = 0.0, 0.0
    for group in kept:
        returns = group["final"] + group["tools"]
        advantages = group_advantages(returns, normalize_std=normalize_std, epsilon=1e-300)
        scale = returns.std() if normalize_std else 1.0
        inner += float(advantages @ ((group["final"] - group["final"].mean()) / scale))
        whole += float(advantages @ advantages)
    assert shares["final"] == pytest.approx(inner / whole, abs=1e-6)


def test_the_batch_of_all_ranks_is_judged_together() -> None:
    ranks = [
        RankStats(version=3, metrics={"time/update": 1.0, "learner/loss": 0.5}, group_ids=("a",), parts=(BY_OUTCOME,)),
        RankStats(version=3, metrics={"time/update": 2.0, "learner/loss": 0.5}, group_ids=("b",), parts=(BY_TOOLS,)),
    ]
    merged = merge(ranks, normalize_std=True)
    assert merged.group_ids == (("a",), ("b",))
    assert merged.metrics["time/update"] == 2.0
    assert merged.metrics["reward_batch/variance_share/final"] == pytest.approx(0.5)
    assert merged.metrics["reward_batch/max/tool_use"] == 0.4
