"""What would stop a run after its engines have started is found before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from envs import preflight as module
from envs.preflight import preflight
from envs.registry import FAMILIES, load_source
from envs.research.family import ResearchFamily
from envs.source import SimulatedSource
from envs.world_env import WorldEnv

SECTION = EnvSection(name="mine:Mine", levels=(1, 2))


@pytest.mark.parametrize("family", [*FAMILIES, "research*2+trip"])
async def test_the_projects_families_pass(family):
    section = EnvSection(name=family)
    await preflight(load_source(section), section)


class Speechless:
    def __init__(self, simulator):
        self.call, self.state, self.restore, self.verdict = (
            getattr(simulator, name) for name in ("call", "state", "restore", "verdict")
        )


class WithoutVerdict(WorldEnv):
    verdict = None


async def refusal(**changes) -> str:
    source = SimulatedSource(ResearchFamily(), SECTION)
    for name, value in changes.items():
        setattr(source, name, value)
    with pytest.raises(ConfigError) as refused:
        await preflight(source, SECTION)
    return str(refused.value)


async def test_a_simulator_that_lacks_a_method_is_refused():
    start = SimulatedSource(ResearchFamily(), SECTION).start
    message = await refusal(start=lambda task: Speechless(start(task)))
    assert message.startswith("env.name 'mine:Mine': Speechless is no Simulator: it lacks the method answer(value: str | None)")


async def test_an_environment_that_lacks_a_method_is_refused():
    source = SimulatedSource(ResearchFamily(), SECTION)

    def make_env():
        env = source.make_env()
        env.__class__ = WithoutVerdict
        return env

    assert "WithoutVerdict is no ToolEnv: verdict must be the method verdict() -> float" in await refusal(make_env=make_env)


async def test_values_of_a_wrong_kind_are_refused():
    assert "sample() must return a Task (envs/base.py), got str" in await refusal(sample=lambda rng, *, split, level: "task")
    assert "solution() must return a Solution (envs/base.py), got list" in await refusal(solution=lambda task: [])


async def test_a_task_must_be_of_its_sources_family():
    task = SimulatedSource(ResearchFamily(), SECTION).get("research/train/1/1")
    message = await refusal(sample=lambda rng, *, split, level: replace(task, family="other"))
    assert "family 'research' draws a task of family 'other'; they must agree" in message


async def test_an_error_names_the_task_and_the_command_that_tells_more():
    def solution(task):
        if (task.split, task.level) == ("val", 2):
            raise KeyError("velor")
        return SimulatedSource(ResearchFamily(), SECTION).solution(task)

    message = await refusal(solution=solution)
    assert "beginning task research/val/2/" in message
    assert "raised KeyError: 'velor'; `cacherl env check` tells more" in message


async def test_an_environment_that_hangs_is_refused(monkeypatch):
    class Hanging(WorldEnv):
        async def reset(self, task, *, rollout_seed):
            await asyncio.sleep(60)

    monkeypatch.setattr(module, "_DEADLINE_S", 0.05)
    source = SimulatedSource(ResearchFamily(), SECTION)

    def make_env():
        env = source.make_env()
        env.__class__ = Hanging
        return env

    assert "took more than 0.05 s" in await refusal(make_env=make_env)
