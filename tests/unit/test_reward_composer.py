"""Each component on worked examples, and the bounds of their sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacherl.config import EnvSection, RewardSection
from cacherl.trajectory import ToolCall
from envs.registry import load_source
from rewards.components import StepPenalty
from rewards.composer import Composer

DEFAULT = Composer.from_config(RewardSection())


def good(*tags: str) -> ToolCall:
    return ToolCall(name="read", arguments={}, ok=True, tags=tags)


def bad(error: str, *tags: str) -> ToolCall:
    return ToolCall(name="read", arguments={}, ok=False, error=error, tags=tags)


@pytest.mark.parametrize(
    ("calls", "tool_use"),
    [
        ([], 0.0),
        ([good("needed", "first")], 0.05),
        ([good("needed", "repeat")], 0.0),
        ([good()], 0.0),
        ([good("irrelevant", "first")], -0.1),
        ([good("irrelevant", "repeat")], -0.1),
        ([bad("parse")], -0.1),
        ([bad("unknown_tool")], -0.1),
        ([bad("arguments")], -0.1),
        ([bad("tool", "irrelevant")], -0.1),
        ([bad("tool")], 0.0),
        ([bad("transient")], 0.0),
        ([bad("timeout", "irrelevant")], 0.0),
        ([good("needed", "first"), good("irrelevant", "first"), bad("transient")], -0.05),
    ],
)
def test_tool_use(calls, tool_use):
    assert DEFAULT.turn(calls) == {"tool_use": pytest.approx(tool_use), "step_penalty": -0.02}


@pytest.mark.parametrize(("outcome", "final"), [(1.0, 2.0), (0.0, -0.5), (0.5, 0.75)])
def test_the_final_outcome_runs_from_failure_to_success(outcome, final):
    composer = Composer.from_config(RewardSection(success=2.0, failure=-0.5))
    assert composer.trajectory(outcome) == {"final": pytest.approx(final)}


async def test_a_whole_episode_adds_up_as_computed_by_hand():
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
    parts = [DEFAULT.turn(step.calls) for step in steps]
    assert [part["tool_use"] for part in parts] == pytest.approx([0.05, -0.1, 0.05, 0.0, 0.0])
    assert [part["step_penalty"] for part in parts] == [-0.02] * 5
    final = DEFAULT.trajectory(steps[-1].outcome)
    assert final == {"final": 1.0}
    assert sum(sum(part.values()) for part in parts) + final["final"] == pytest.approx(0.9)


_CALLS = st.lists(
    st.builds(
        lambda ok, error, tags: good(*tags) if ok else bad(error, *tags),
        st.booleans(),
        st.sampled_from(["parse", "unknown_tool", "arguments", "tool", "transient", "timeout"]),
        st.lists(st.sampled_from(["needed", "first", "repeat", "irrelevant"]), unique=True),
    ),
    max_size=40,
)


@given(
    _CALLS,
    st.floats(0, 5),
    st.floats(-5, 0),
    st.floats(-5, 0),
)
def test_a_turn_stays_within_its_bound_and_keeps_the_proportions_of_its_parts(calls, needed, misuse, penalty):
    section = RewardSection(tool_use=needed, tool_misuse=misuse, step_penalty=penalty)
    parts = Composer.from_config(section).turn(calls)
    assert abs(sum(parts.values())) <= 1.0 + 1e-9
    assert parts == Composer.from_config(section).turn(calls)
    free = sum(parts.values())
    if abs(free) < 1.0 - 1e-9:
        assert parts["step_penalty"] == penalty


@given(st.floats(0.01, 10), st.floats(-10, 0), st.floats(0, 1))
def test_the_final_part_lies_between_failure_and_success(success, failure, outcome):
    final = Composer.from_config(RewardSection(success=success, failure=failure)).trajectory(outcome)["final"]
    assert failure - 1e-9 <= final <= success + 1e-9


def test_components_have_distinct_names():
    with pytest.raises(ValueError, match=r"distinct names, got \['step_penalty', 'step_penalty'\]"):
        Composer(turn=[StepPenalty(penalty=-0.1), StepPenalty(penalty=-0.2)], trajectory=[])
