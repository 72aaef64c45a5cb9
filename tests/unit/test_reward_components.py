"""Each component by itself on worked turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacherl.errors import ConfigError
from cacherl.trajectory import Status, Trajectory
from envs.registry import load_source
from reward_data import bad, calls, episode, good, run_config, says
from rewards.base import TurnComponent, steps_of
from rewards.components import FinalOutcome, StepPenalty, ToolUse
from rewards.cost import ToolCost, declared, seconds
from rewards.format import CallFormat
from rewards.overlong import Overlong
from rewards.shaping import Shaping
from rewards.utilization import ResultUtilization, occurs, values_of


def per_turn(component: TurnComponent, trajectory: Trajectory) -> list[float]:
    return [component.turn(step) for step in steps_of(trajectory)]


def test_a_step_is_state_action_results_and_next_state():
    made = good()
    played = episode(says("look", (made, "seen"), potential=0.25), says("done", potential=0.5), prompt=["Who?"])
    first, last = steps_of(played)
    assert (first.action, first.calls, [message.content for message in first.results]) == ("look", (made,), ["seen"])
    assert (first.state.turns, first.state.potential) == ((), 0.25)
    assert [message.content for message in first.state.prompt] == ["Who?"]
    assert (first.next_state.turns, first.next_state.potential) == (played.turns[:1], 0.5)
    assert last.state == first.next_state
    assert (last.next_state.turns, last.next_state.potential) == (played.turns, 0.0)


@pytest.mark.parametrize(
    ("made", "value"),
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
        ([bad("unrecorded", "irrelevant")], 0.0),
        ([good("needed", "first"), good("irrelevant", "first"), bad("transient")], -0.05),
    ],
)
def test_tool_use(made, value):
    assert per_turn(ToolUse(needed=0.05, misuse=-0.1), episode(calls(*made))) == [pytest.approx(value)]


@pytest.mark.parametrize(("outcome", "final"), [(1.0, 2.0), (0.0, -0.5), (0.5, 0.75)])
def test_the_final_outcome_runs_from_failure_to_success(outcome, final):
    assert FinalOutcome(success=2.0, failure=-0.5).trajectory(episode(outcome=outcome)) == pytest.approx(final)


def test_every_turn_costs_the_step_penalty():
    assert per_turn(StepPenalty(penalty=-0.02), episode(calls(), calls(good()), says("done"))) == [-0.02] * 3


def found(result: str):
    return (good(), result)


@pytest.mark.parametrize(
    ("turns", "values"),
    [
        pytest.param([says("a", found('{"id":"d17"}')), says("read d17")], [0, 1], id="used by the next turn"),
        pytest.param([says("a", found('{"id":"d17"}')), says("b"), says("read d17")], [0, 0, 1], id="used later"),
        pytest.param([says("a", found('{"id":"d17"}')), says("d17"), says("d17")], [0, 1, 0], id="credited once"),
        pytest.param([says("a", found('{"id":"d17"}')), says("d175 xd17")], [0, 0], id="not inside a word"),
        pytest.param([says("a", found('{"name":"velor"}')), says("velor")], [0, 0], id="known from the prompt"),
        pytest.param([says("d17", found('{"id":"d17"}')), says("d17")], [0, 0], id="known from the agent's own text"),
        pytest.param(
            [says("a", found('{"id":"d17"}')), says("b", found('{"id":"d17"}')), says("d17")], [0, 0, 1], id="asked twice"
        ),
        pytest.param(
            [says("a", found('{"id":"d17"}'), found('{"id":"d18"}')), says("d17 d18")], [0, 2], id="two results at once"
        ),
        pytest.param([says("a", (bad("tool"), '{"error":"d17"}')), says("d17")], [0, 0], id="an error is no result"),
        pytest.param([says("a", found('{"rows":[{"n":31},{"n":true}]}')), says("31 true")], [0, 1], id="leaves of any depth"),
        pytest.param([says("a", found('{"n":3}')), says("3")], [0, 0], id="too short to mean anything"),
    ],
)
def test_a_result_is_used_when_a_later_turn_says_something_new_from_it(turns, values):
    played = episode(*turns, prompt=["Who is the boss of velor?"])
    assert per_turn(ResultUtilization(value=0.1), played) == pytest.approx([0.1 * value for value in values])


async def test_by_the_environment_s_rule_its_tag_counts():
    """In the research family, a needed read of a document that a search has found; the same read again is no use."""
    source = load_source(run_config().env.model_copy(update={"transient_failure_rate": 0.0}))
    task = source.get("research/train/2/4")
    steps = source.solution(task).steps
    env = source.make_env()
    await env.reset(task, rollout_seed=0)
    texts = [source.format.render([step.call]) for step in steps]
    played = episode(*[calls(*(await env.step(text)).calls) for text in (*texts, texts[-1])])
    names = [step.call.name for step in steps]
    assert names == ["search", "read", "search", "read"]
    assert per_turn(ResultUtilization(value=0.1, rule="environment"), played) == pytest.approx([0, 0.1, 0, 0.1, 0])
    assert per_turn(ToolUse(needed=0.05, misuse=-0.1), played) == pytest.approx([0.05, 0.05, 0.05, 0.05, 0.0])


def test_what_counts_as_a_value_of_a_result():
    assert values_of('{"id":"d17","price":12.5,"ok":true,"none":null}') == {"d17", "12.5"}
    long = "The mayor of Velor, elected in 1987, lives there with Tamik-Ree."
    assert values_of(f'{{"text":"{long}"}}') == {"The", "Velor", "1987", "Tamik-Ree"}
    assert values_of("not json") == {"not json"}
    assert occurs("a+b", "say (a+b).")
    assert not occurs("a+b", "say xa+b")


@pytest.mark.parametrize(
    ("made", "value"),
    [
        ([good()], 0.0),
        ([good(repairs=("fence",))], -0.01),
        ([bad("parse")], -0.03),
        ([bad("arguments", repairs=("fence",)), bad("unknown_tool")], -0.06),
        ([bad("tool", repairs=("fence",)), bad("transient")], -0.01),
    ],
)
def test_format(made, value):
    assert per_turn(CallFormat(repair=-0.01, invalid=-0.03), episode(calls(*made))) == [pytest.approx(value)]


def test_declared_costs_are_paid_for_calls_that_reach_a_tool_up_to_the_cap():
    component = ToolCost(rate=-0.1, cap=0.5, amount=declared({"read": 2.0}), name="tool_cost")
    played = episode(
        calls(good(), bad("parse")), calls(good(name="free"), bad("transient")), calls(good()), calls(good()), says("done")
    )
    assert per_turn(component, played) == pytest.approx([-0.2, -0.2, -0.1, 0.0, 0.0])
    assert component.reach(99).toll == 0.5


def test_latency_is_paid_by_the_second():
    component = ToolCost(rate=-0.01, cap=0.1, amount=seconds, name="latency")
    assert per_turn(
        component, episode(calls(good(seconds=3.0), good(seconds=1.0)), calls(good(seconds=60.0)))
    ) == pytest.approx([-0.04, -0.06])


@pytest.mark.parametrize(("length", "value"), [(50, 0.0), (80, 0.0), (85, -0.125), (90, -0.25), (100, -0.5), (120, -0.5)])
def test_overlong_penalty_grows_linearly_over_the_buffer(length, value):
    component = Overlong(penalty=-0.5, limit=100, buffer=20)
    assert component.trajectory(episode(calls(), length=length)) == pytest.approx(value)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=10),
    st.floats(0.01, 1),
    st.floats(0, 2),
)
def test_shaping_telescopes_to_the_first_potential(potentials, gamma, weight):
    """sum_t gamma^t (gamma phi_{t+1} - phi_t) = -phi_0, phi = 0 after the last turn."""
    played = episode(*(says("", potential=potential) for potential in potentials))
    values = per_turn(Shaping(weight=weight, gamma=gamma), played)
    discounted = sum(gamma**turn * value for turn, value in enumerate(values))
    assert discounted == pytest.approx(-weight * potentials[0], abs=1e-9)


def test_shaping_by_hand():
    played = episode(says("", potential=0.0), says("", potential=0.5), says("", potential=1.0))
    assert per_turn(Shaping(weight=2.0, gamma=0.9), played) == pytest.approx([0.9, 0.8, -2.0])


def test_shaping_of_a_completion_that_was_cut_off_counts_the_state_before():
    cut = replace(
        episode(says("", potential=0.5), says("", potential=0.75), says("")), status=Status(kind="truncated", reason="tokens")
    )
    assert per_turn(Shaping(weight=2.0, gamma=1.0), cut) == pytest.approx([0.5, 0.0, -1.5])
    at_once = replace(episode(says("")), status=Status(kind="truncated", reason="tokens"))
    assert per_turn(Shaping(weight=2.0, gamma=1.0), at_once) == [0.0]
    silent = replace(episode(says(""), says("")), status=Status(kind="truncated", reason="tokens"))
    with pytest.raises(ConfigError, match=r"needs potentials"):
        per_turn(Shaping(weight=1.0, gamma=1.0), silent)


def test_shaping_without_potentials_is_a_setting_to_change():
    with pytest.raises(ConfigError, match=r"reward.shaping 1.0 needs potentials, which this environment does not supply"):
        per_turn(Shaping(weight=1.0, gamma=1.0), episode(says("")))
