"""What the model-free agents do."""

from __future__ import annotations

import pytest

from cacherl.environment_settings import EnvSection
from cacherl.trajectory import Message
from envs.agents import OracleAgent, RandomAgent, ScriptedAgent, TeacherAgent
from envs.base import ToolSpec
from envs.episode import play
from envs.live.function import FunctionToolkit, tool
from envs.live.source import LiveSource, LiveTask
from envs.registry import load_source
from envs.schema import Toolbox

CALM = load_source(EnvSection(transient_failure_rate=0.0))
TASK = CALM.get("research/train/3/8")
FAILED = Message(role="tool", content='{"error":"timeout"}', name="search")


def told(*contents: str) -> list[Message]:
    return [Message(role="tool", content=content) for content in contents]


def test_the_oracle_repeats_a_failed_call():
    oracle = OracleAgent(CALM)
    first = oracle.act(TASK, [])
    assert first.startswith("[TOOL_CALL] search")
    assert oracle.act(TASK, [FAILED]) == first
    assert oracle.act(TASK, told('{"id":"d1"}')).startswith("[TOOL_CALL] read")


def test_a_sloppy_teacher_stops_at_hops_and_after_failures_only():
    answers = [step.partial_answer for step in CALM.solution(TASK).steps]
    start = CALM.solution(TASK).guess
    after_hop, after_search, after_failure = [], [], []
    for seed in range(400):
        teacher = TeacherAgent(CALM, sloppiness=0.65, seed=seed)
        after_search.append(teacher.act(TASK, told('{"id":"d1"}')))
        after_hop.append(teacher.act(TASK, told('{"id":"d1"}', '{"value":"velor"}')))
        after_failure.append(teacher.act(TASK, [FAILED]))
    assert not any(text.startswith("[ANSWER]") for text in after_search)
    assert after_hop.count(f"[ANSWER] {answers[1]}") / 400 == pytest.approx(0.65, abs=0.07)
    assert after_failure.count(f"[ANSWER] {start}") / 400 == pytest.approx(0.65, abs=0.07)


async def test_success_of_the_sloppy_teacher_is_what_its_sloppiness_implies():
    solved = 0
    for seed in range(600):
        teacher = TeacherAgent(CALM, sloppiness=0.5, seed=seed)
        solved += (await play(CALM.make_env(), TASK, teacher, rollout_seed=seed, max_turns=16)).outcome
    assert solved / 600 == pytest.approx(0.5**2, abs=0.06)


def test_sloppiness_is_a_probability():
    with pytest.raises(ValueError, match=r"sloppiness must lie in \[0, 1\), got 1.0"):
        TeacherAgent(CALM, sloppiness=1.0, seed=0)


async def test_an_episode_may_run_out_of_turns():
    episode = await play(CALM.make_env(), TASK, OracleAgent(CALM), rollout_seed=0, max_turns=3)
    assert (episode.truncated, episode.outcome, len(episode.turns)) == (True, 0.0, 3)
    assert [message.role for message in episode.messages] == ["user", *["assistant", "tool"] * 3]


def test_a_random_agent_tries_everything_and_repeats_itself_for_a_seed():
    texts = [RandomAgent(CALM, seed=seed).act(TASK, []) for seed in range(300)]
    assert texts == [RandomAgent(CALM, seed=seed).act(TASK, []) for seed in range(300)]
    kinds = {"[ANSWER]": 0, "[TOOL_CALL] search": 0, "[TOOL_CALL] read": 0, "[TOOL_CALL] nothing": 0}
    for kind in kinds:
        kinds[kind] = sum(text.startswith(kind) for text in texts)
    assert all(count > 5 for count in kinds.values())


def test_a_scripted_agent_goes_on_with_its_last_text():
    agent = ScriptedAgent(["a", "b"])
    said = Message(role="assistant", content="a")
    assert [agent.act(TASK, [said] * turn) for turn in range(4)] == ["a", "b", "b", "b"]
    with pytest.raises(ValueError, match="at least one text"):
        ScriptedAgent([])


def test_a_random_agent_makes_values_of_every_kind_that_a_schema_may_ask_for():
    kinds = {
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"enum": ["red"]}]},
        "many": {"type": "array", "items": {"type": "boolean"}},
        "place": {"type": "object", "properties": {"floor": {"type": "integer"}}},
    }
    schema = {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}
    spec = ToolSpec(name="go", description="Go.", parameters=schema)

    @tool
    def go() -> None:
        """Go."""

    go.spec = spec
    section = EnvSection(levels=(1,), transient_failure_rate=0.0)
    source = LiveSource(section, "x", [FunctionToolkit("x", [go])], [LiveTask(prompt="!?", answer="1")])
    agent, task = RandomAgent(source, seed=0), source.get("x/train/1/0")
    texts = [agent.act(task, told(*[""] * number)) for number in range(200)]
    calls = [call for text in texts for call in source.format.parse(text, finish_reason="stop") if call.arguments]
    assert len(calls) > 100
    assert all(Toolbox([spec]).problem("go", call.arguments) is None for call in calls)
    assert {type(call.arguments["either"]) for call in calls} == {int, str}
