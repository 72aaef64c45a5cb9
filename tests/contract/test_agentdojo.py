"""agentdojo through our adapter: the ground truth solves its tasks, and doing nothing does not."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec

import pytest

from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from envs.adapters.agentdojo import package
from envs.adapters.agentdojo.package import SUITES, UserTask
from envs.adapters.agentdojo.source import dojo_source
from envs.adapters.suite import SuiteSource
from envs.agents import Agent, OracleAgent, ScriptedAgent
from envs.base import EnvStep, PlannedCall
from envs.episode import play

needs_package = pytest.mark.skipif(find_spec("agentdojo") is None, reason="needs the package agentdojo (extra 'agentdojo')")


@pytest.fixture(scope="module")
def source() -> SuiteSource[UserTask]:
    return dojo_source(EnvSection(transient_failure_rate=0.0))


def outcomes(source: SuiteSource[UserTask], agent: Agent) -> dict[str, float]:
    async def all_played() -> dict[str, float]:
        return {
            f"{SUITES[level]} {index}": (await play(source.make_env(), task, agent, rollout_seed=0, max_turns=40)).outcome
            for level in SUITES
            for index, task in enumerate(source.all_tasks(level))
        }

    return asyncio.run(all_played())


@needs_package
def test_the_ground_truth_solves_every_task(source: SuiteSource[UserTask]) -> None:
    solved = outcomes(source, OracleAgent(source))
    assert len(solved) == 97
    assert [name for name, outcome in solved.items() if outcome != 1.0] == []


@needs_package
def test_doing_nothing_solves_only_the_five_tasks_whose_own_check_does_not_mind(source: SuiteSource[UserTask]) -> None:
    solved = [name for name, outcome in outcomes(source, ScriptedAgent(["Done."])).items() if outcome]
    assert solved == [f"banking {number}" for number in (5, 6, 8, 9, 10)]


@needs_package
def test_siblings_share_nothing_and_a_snapshot_resumes(source: SuiteSource[UserTask]) -> None:
    task = source.all_tasks(1)[3]
    texts = [source.format.render([call]) for call in source.solution(task).calls]

    async def acted() -> list[list[EnvStep]]:
        first, second, third = (source.make_env() for _ in range(3))
        for env in (first, second, third):
            await env.reset(task, rollout_seed=0)
        alone = [await first.step(text) for text in texts]
        third.restore(json.loads(json.dumps(first.snapshot())))
        after = [await second.step(text) for text in texts]
        return [alone, after, [await env.step(texts[0]) for env in (first, third)]]

    alone, after, (one, other) = asyncio.run(acted())
    assert alone == after
    assert one == other


@needs_package
def test_bad_calls_are_explained(source: SuiteSource[UserTask]) -> None:
    async def acted() -> list[EnvStep]:
        env = source.make_env()
        await env.reset(source.all_tasks(1)[0], rollout_seed=0)
        calls = [PlannedCall(name="send_channel_message", arguments={}), PlannedCall(name="read_file", arguments={})]
        return [await env.step(source.format.render([call])) for call in calls]

    steps = asyncio.run(acted())
    assert [step.calls[0].error for step in steps] == ["unknown_tool", "arguments"]  # the first one is another suite's
    assert steps[1].messages[0].content == '{"error":"read_file needs file_path"}'


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.adapters.agentdojo.package.importlib.util.find_spec", lambda name: None)
    for cached in (package._suites, package.user_tasks, package.tool_specs):
        cached.cache_clear()


@pytest.mark.usefixtures("no_package")
def test_without_the_package_the_message_says_how_to_install_it() -> None:
    with pytest.raises(ConfigError, match=r"needs the package agentdojo; install it with: pip install --no-deps agentdojo=="):
        dojo_source(EnvSection())
