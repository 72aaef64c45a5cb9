"""How weights follow a run, and that the schedule goes on where a saved one stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.tasks import TaskStream
from envs.registry import load_source
from reward_data import run_config
from rewards.schedule import RewardSchedule


def schedule(**reward: Any) -> RewardSchedule:
    return RewardSchedule(run_config(reward).reward)


def test_without_settings_nothing_is_ever_scaled():
    plain = schedule()
    for update in range(5):
        plain.observe(update, turns=float(update), success=1.0 - update / 10)
        assert plain.scales == {}
    assert plain.metrics == {"reward_weight/final": 1.0, "reward_weight/tool_use": 0.05, "reward_weight/step_penalty": -0.02}


def test_auxiliary_parts_are_phased_in_while_the_final_one_and_shaping_count_from_the_start():
    phased = schedule(phase_in={"after": 2, "over": 4}, judge={"weight": 0.2, "model": "m", "url": "http://h/v1"})
    seen = {}
    for update in range(8):
        phased.observe(update, turns=4.0, success=0.5)
        seen[update] = phased.metrics
        assert "final" not in phased.scales
    assert [seen[update]["reward_weight/tool_use"] for update in range(8)] == pytest.approx(
        [0, 0, 0, 0.0125, 0.025, 0.0375, 0.05, 0.05]
    )
    assert [seen[update]["reward_weight/judge"] for update in range(8)] == pytest.approx([0, 0, 0, 0.05, 0.1, 0.15, 0.2, 0.2])
    assert {metrics["reward_weight/final"] for metrics in seen.values()} == {1.0}


def test_parts_start_at_once_after_the_updates_without_them():
    phased = schedule(phase_in={"after": 2})
    values = []
    for update in range(4):
        phased.observe(update, turns=None, success=None)
        values.append(phased.metrics["reward_weight/tool_use"])
    assert values == [0.0, 0.0, 0.05, 0.05]


ADAPTIVE = {"rate": 0.5, "limit": 2.0, "memory": 8.0, "length_rise": 0.05, "success_drop": 0.05}


def run(adaptive: RewardSchedule, lengths: list[float], successes: list[float]) -> list[float]:
    factors = []
    for update, (turns, success) in enumerate(zip(lengths, successes, strict=True)):
        adaptive.observe(update, turns=turns, success=success)
        factors.append(adaptive.scales.get("step_penalty", 1.0))
    return factors


def test_the_step_penalty_grows_while_episodes_get_longer_and_falls_back_when_success_drops():
    """Slow mean of memory 8, fast one of 2; plain means at first. At update 5 of lengths 4, 4, 4, 6, 6, ...: fast 5, slow 4.5
    at the first rise. Growth 1.5, then the limit 2; a drop of success takes it back to 1."""
    lengths = [4.0] * 3 + [6.0] * 4 + [6.0] * 4
    successes = [0.8] * 7 + [0.2] * 4
    factors = run(schedule(adaptive=ADAPTIVE), lengths, successes)
    assert factors[:7] == [1.0, 1.0, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert factors[7:] == pytest.approx([2.0 / 1.5, 1.0, 1.0, 1.0])


def test_episodes_that_keep_their_length_change_nothing():
    assert run(schedule(adaptive=ADAPTIVE), [4.0] * 20, [0.5] * 20) == [1.0] * 20
    assert run(schedule(adaptive=ADAPTIVE), [6.0 - update / 10 for update in range(20)], [0.5] * 20) == [1.0] * 20


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(0, 1)), max_size=60))
def test_the_penalty_never_leaves_its_limits(observed):
    adaptive = schedule(adaptive=ADAPTIVE)
    for factor in run(adaptive, [turns for turns, _ in observed], [success for _, success in observed]):
        assert 1.0 <= factor <= 2.0


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(0, 1)), max_size=30), st.integers(0, 30))
def test_a_schedule_that_was_saved_goes_on_as_if_nothing_had_happened(observed, cut):
    settings = {"phase_in": {"after": 3, "over": 9}, "adaptive": ADAPTIVE}
    whole, stopped = schedule(**settings), schedule(**settings)
    resumed = schedule(**settings)
    for update, (turns, success) in enumerate(observed):
        whole.observe(update, turns=turns, success=success)
        if update == min(cut, len(observed) - 1):
            resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        (stopped if update < cut else resumed).observe(update, turns=turns, success=success)
    assert (resumed if len(observed) > cut else stopped).scales == whole.scales


def test_every_group_carries_the_scales_of_the_moment_it_is_requested():
    config = run_config({"phase_in": {"after": 1}})
    rewards = RewardSchedule(config.reward)
    stream = TaskStream(load_source(config.env), config, prefix="run", scales=lambda: rewards.scales)
    assert stream().scales == {"tool_use": 0.0, "step_penalty": 0.0}
    rewards.observe(1, turns=4.0, success=0.0)
    assert stream().scales == {}
