"""The composed reward: worked episodes with every part, and the bounds of their sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.scoring import composer_of
from cacherl.environment_settings import EnvSection
from cacherl.trajectory import Trajectory, Turn
from envs.registry import load_source
from reward_data import bad, calls, episode, good, live, run_config, says
from rewards.base import Reach
from rewards.catalogue import build_components
from rewards.components import StepPenalty
from rewards.composer import Composer
from rewards.tiers import answer_weight
from rewards.user import UserTrajectory


def score(trajectory: Trajectory, reward: dict[str, Any] | None = None, **sections: Any) -> Trajectory:
    return Composer.from_config(run_config(reward, **sections)).score([trajectory])[0]


def parts(trajectory: Trajectory) -> list[dict[str, float]]:
    return [dict(turn.rewards) for turn in trajectory.turns]


async def test_a_whole_episode_with_the_defaults_adds_up_as_computed_by_hand():
    """search (needed) and read of a wrong field, then the right one twice, then the right answer, after 5 turns.

    tool_use: +0.05 - 0.1 + 0.05 + 0 + 0 = 0; step_penalty: 5 * -0.02 = -0.1; final: 1. Total 0.9.
    """
    source = load_source(EnvSection(transient_failure_rate=0.0))
    task = source.get("research/train/1/2")
    search, read = (source.format.render([step.call]) for step in source.solution(task).steps)
    asked = task.params["relations"][0]
    wrong = read.replace(asked, "boss" if asked != "boss" else "friend")
    env = source.make_env()
    await env.reset(task, rollout_seed=0)
    steps = [await env.step(text) for text in (search, wrong, read, read, f"[ANSWER] {source.solution(task).answer}")]
    assert steps[-1].outcome == 1.0
    played = episode(*(calls(*step.calls) for step in steps), outcome=1.0)
    (scored,) = composer_of(run_config(), source).score([played])
    assert [turn["tool_use"] for turn in parts(scored)] == pytest.approx([0.05, -0.1, 0.05, 0.0, 0.0])
    assert [turn["step_penalty"] for turn in parts(scored)] == [-0.02] * 5
    assert scored.rewards == {"final": 1.0}
    assert scored.total_reward == pytest.approx(0.9)
    assert [step.potential for step in steps] == [0.0, 0.5, 0.5, 1.0, 1.0]


RESEARCH = {
    "tool_use": 0.05,
    "result_utilization": 0.1,
    "format": {"repair": -0.01, "invalid": -0.03},
    "cost": {"call": -0.01, "second": -0.1, "cap": 0.15},
    "overlong": {"penalty": -0.4, "buffer": 20},
    "components": [{"path": "reward_data.spends", "name": "spends", "weight": -0.03, "settings": {"share": 0.5}}],
}
RESEARCH_SECTIONS: dict[str, Any] = {"env": {"max_turns": 6}, "model": {"max_length": 100}}


def test_the_research_assistant_with_all_parts_as_computed_by_hand():
    """Who is the boss of velor? A search, an unreadable call, a repaired read of the id found, and the answer that it gave.

    turn            tool_use  utilization  step   format  tool_cost  latency   spends
    0 search           0.05       0        -0.02    0      -0.01      -0.05    -0.015
    1 unreadable      -0.1        0        -0.02   -0.03    0          0       -0.015
    2 read             0.05       0.1      -0.02   -0.01   -0.02      -0.1     -0.015
    3 answer           0          0.1      -0.02    0       0          0        0
    sum                0          0.2      -0.08   -0.04   -0.03      -0.15    -0.045

    latency is 0.5 s, then 2 s, of which the cap of 0.15 leaves 1 s; overlong: 95 of 100 tokens, buffer 20: 15/20 of -0.4.
    Total: 1 + 0.2 - 0.08 - 0.04 - 0.03 - 0.15 - 0.045 - 0.3 = 0.555.
    """
    played = episode(
        says("search velor", (good("needed", "first", name="search", seconds=0.5), '{"id":"d17"}')),
        says("read {", (bad("parse"), '{"error":"unclosed"}')),
        says("read d17", (good("needed", "first", "uses", seconds=2.0, repairs=("brace",)), '{"value":"tamik"}')),
        says("[ANSWER] tamik"),
        outcome=1.0,
        prompt=["Who is the boss of velor?"],
        length=95,
    )
    config = run_config(RESEARCH, **RESEARCH_SECTIONS)
    (scored,) = Composer.from_config(config, {"search": 1.0, "read": 2.0}).score([played])
    by_hand = {
        "tool_use": [0.05, -0.1, 0.05, 0.0],
        "result_utilization": [0.0, 0.0, 0.1, 0.1],
        "step_penalty": [-0.02] * 4,
        "format": [0.0, -0.03, -0.01, 0.0],
        "tool_cost": [-0.01, 0.0, -0.02, 0.0],
        "latency": [-0.05, 0.0, -0.1, 0.0],
        "spends": [-0.015, -0.015, -0.015, 0.0],
    }
    for name, values in by_hand.items():
        assert [turn[name] for turn in parts(scored)] == pytest.approx(values), name
    assert set(parts(scored)[0]) == set(by_hand)
    assert scored.rewards == pytest.approx({"final": 1.0, "overlong": -0.3})
    assert scored.total_reward == pytest.approx(0.555)


def test_scoring_again_replaces_what_was_scored_before():
    once = score(episode(calls(good("needed", "first")), outcome=1.0))
    twice = score(once, {"tool_use": 0.02, "success": 2.0})
    assert parts(twice) == [{"tool_use": 0.02, "step_penalty": -0.02}]
    assert twice.rewards == {"final": 2.0}


def test_a_weight_of_zero_leaves_its_component_out():
    assert parts(score(episode(calls()), {"step_penalty": 0, "tool_use": 0, "tool_misuse": 0})) == [{}]


def test_a_turn_s_parts_shrink_together_when_their_sum_leaves_the_bound():
    """Nine misuses and a step cost -0.92 in all; within 0.46 each counts half."""
    scored = score(episode(calls(*[bad("parse")] * 9)), {"turn_bound": 0.46})
    assert parts(scored) == [pytest.approx({"tool_use": -0.45, "step_penalty": -0.01})]


def test_what_an_episode_can_earn_besides_is_bounded_by_what_success_is_worth():
    """Eight needed calls a turn are 0.4; six such turns less 6 * 0.02 are 2.28 instead of at most 1."""
    hoard = episode(*[calls(*[good("needed", "first")] * 8)] * 6)
    scored = score(hoard)
    assert scored.total_reward == pytest.approx(1.0)
    assert scored.turns[0].rewards == pytest.approx({"tool_use": 0.4 / 2.28, "step_penalty": -0.02 / 2.28})
    assert score(hoard, {"allow_domination": True}).total_reward == pytest.approx(2.28)


def test_where_the_process_weighs_more_than_the_answer_it_still_cannot_be_worth_more():
    """With alpha 0.2 success is worth 0.2 and the process counts 0.8, so that it is bounded by 0.25 before it is weighed."""
    hoard = episode(*[calls(*[good("needed", "first")] * 8)] * 6)
    scored = score(hoard, {"tiers": {"enabled": True, "exact": 0.2}, "tool_use": 0.02, "step_penalty": 0}, env={"max_turns": 6})
    assert scored.total_reward == pytest.approx(0.2)


def test_no_component_sees_what_an_earlier_scoring_said():
    peek = UserTrajectory(name="peek", weight=0.1, function=lambda member: member.total_reward, bounds=lambda turns: Reach())
    composer = Composer(run_config().reward, [*build_components(run_config(), {}), peek])
    once = composer.score([episode(calls(good("needed", "first")), outcome=1.0)])
    assert composer.score(once)[0].reward_parts == once[0].reward_parts


def test_scales_multiply_their_component_alone():
    played = episode(calls(good("needed", "first")), outcome=1.0)
    (scored,) = Composer.from_config(run_config()).score([played], {"tool_use": 0.5, "step_penalty": 3.0})
    assert (parts(scored), scored.rewards) == ([pytest.approx({"tool_use": 0.025, "step_penalty": -0.06})], {"final": 1.0})


def test_a_normalised_part_is_as_large_as_its_weight_for_the_member_that_has_most_of_it():
    slow, slower, quick = (episode(calls(good(seconds=seconds)), calls()) for seconds in (1.0, 4.0, 0.0))
    reward = {"cost": {"second": -0.01}, "normalize": ["latency"], "step_penalty": 0}
    composer = Composer.from_config(run_config(reward))
    assert [member.reward_parts["latency"] for member in composer.score([slow, slower, quick])] == pytest.approx(
        [-0.0025, -0.01, 0.0]
    )
    assert composer.score([quick, quick])[0].reward_parts["latency"] == 0.0


TIERS = {"tiers": {"enabled": True}, "allow_domination": True}


@pytest.mark.parametrize(
    ("tiers", "alpha"),
    [
        ((), 0.6),
        ((None,), 0.6),
        (("live", "exact"), 0.6),
        (("exact", "normalised", "live"), 0.3),
        (("best_effort", "normalised", "exact"), 0.1),
    ],
)
def test_the_worst_tier_of_the_rollout_weighs_the_answer_and_the_process_takes_the_rest(tiers, alpha):
    """One call a turn: 0.05 for needed first ones; each turn costs 0.02."""
    turns = [calls(replace(live(tier), tags=("needed", "first"))) for tier in tiers]
    scored = score(episode(*turns, outcome=1.0), TIERS)
    assert scored.rewards == pytest.approx({"final": alpha})
    for turn in parts(scored):
        assert turn == pytest.approx({"tool_use": (1 - alpha) * 0.05, "step_penalty": (1 - alpha) * -0.02})


def test_tiers_have_configurable_weights():
    section = run_config({"tiers": {"enabled": True, "exact": 0.9, "normalised": 0.5, "best_effort": 0.2}}).reward.tiers
    assert [answer_weight(episode(calls(live(tier))), section) for tier in ("live", "normalised", "best_effort")] == [
        0.9,
        0.5,
        0.2,
    ]


_CALL = st.builds(
    lambda ok, error, tags, seconds, tier, repairs: (
        good(*tags, seconds=seconds, tier=tier, repairs=repairs) if ok else bad(error, *tags, seconds=seconds, repairs=repairs)
    ),
    st.booleans(),
    st.sampled_from(["parse", "unknown_tool", "arguments", "tool", "transient", "timeout", "unrecorded"]),
    st.lists(st.sampled_from(["needed", "first", "repeat", "irrelevant", "uses"]), unique=True),
    st.floats(0, 100),
    st.sampled_from([None, "live", "exact", "normalised", "best_effort"]),
    st.lists(st.just("brace"), max_size=1).map(tuple),
)
_TURN = st.builds(
    lambda text, made: says(text, *((call, f'{{"value":"{word}"}}') for call, word in made)),
    st.sampled_from(["", "velor", "tamik d17", "d17"]),
    st.lists(st.tuples(_CALL, st.sampled_from(["velor", "tamik", "d17"])), max_size=12),
)
_EPISODES = st.builds(
    lambda turns, outcome, length: episode(*turns, outcome=outcome, length=length),
    st.lists(_TURN, max_size=8),
    st.floats(0, 1),
    st.integers(1, 512),
)
_REWARDS = st.fixed_dictionaries(
    {
        "success": st.floats(0.1, 5),
        "failure": st.floats(-2, 0),
        "tool_use": st.floats(0, 1),
        "tool_misuse": st.floats(-2, 0),
        "result_utilization": st.floats(0, 1),
        "step_penalty": st.floats(-2, 0),
        "format": st.fixed_dictionaries({"repair": st.floats(-1, 0), "invalid": st.floats(-1, 0)}),
        "cost": st.builds(lambda second: {"second": second, **({"cap": 0.3} if second else {})}, st.floats(-1, 0)),
        "turn_bound": st.floats(0.1, 1.0),
    }
)


@settings(max_examples=60)
@given(st.lists(_EPISODES, min_size=1, max_size=3), _REWARDS, st.booleans(), st.booleans())
def test_bounds_hold_for_whatever_is_played(members, reward, tiers, normalized):
    reward = {**reward, "tiers": {"enabled": tiers}}
    if normalized and reward["format"]["invalid"]:
        reward["normalize"] = ["format"]
    config = run_config(reward)
    composer = Composer(config.reward, build_components(config, {}))
    scored = composer.score(members)
    worth = config.reward.success - config.reward.failure
    for member, before in zip(scored, members, strict=True):
        assert all(abs(turn.reward) <= config.reward.turn_bound + 1e-9 for turn in member.turns)
        assert member.total_reward - member.rewards["final"] <= worth + 1e-9
        share = answer_weight(before, config.reward.tiers) if tiers else 1.0
        final = config.reward.failure + worth * before.outcome
        assert member.rewards["final"] == pytest.approx(share * final)
        assert sum(member.reward_parts.values()) == pytest.approx(member.total_reward)
    assert [member.reward_parts for member in composer.score(scored)] == [member.reward_parts for member in scored]


@settings(max_examples=60)
@given(st.lists(_EPISODES, min_size=1, max_size=2))
def test_the_default_reward_is_what_it_always_was(members):
    """The rule of the default parts written out again: nothing of what was added since may change them."""
    for scored, played in zip(Composer.from_config(run_config()).score(members), members, strict=True):
        assert scored.rewards == {"final": played.outcome}
        expected = [_default_turn(turn) for turn in played.turns]
        if sum(map(sum, expected)) <= 1.0:
            assert [(turn["tool_use"], turn["step_penalty"]) for turn in parts(scored)] == expected


def _default_turn(turn: Turn) -> tuple[float, float]:
    used = 0.0
    for call in turn.calls:
        if call.error in ("transient", "timeout", "unrecorded"):
            continue
        if call.error in ("parse", "unknown_tool", "arguments") or "irrelevant" in call.tags:
            used += -0.1
        elif call.ok and {"needed", "first"} <= set(call.tags):
            used += 0.05
    total = abs(used - 0.02)
    return (used, -0.02) if total <= 1 else (used * 1.0 / total, -0.02 * 1.0 / total)


def test_components_that_value_the_same_thing_have_distinct_names():
    with pytest.raises(ValueError, match=r"distinct names, got \['step_penalty', 'step_penalty'\]"):
        Composer(run_config().reward, [StepPenalty(penalty=-0.1), StepPenalty(penalty=-0.2)])
