"""Seeded latency and transient failures."""

from __future__ import annotations

import statistics
import time

import pytest

from cacherl.environment_settings import EnvSection
from envs.noise import ToolNoise, uniform
from envs.registry import load_source


def test_uniform_depends_on_its_key_alone():
    assert uniform("a", 1) == 0.6746015440287199
    draws = [uniform("a", n) for n in range(4000)]
    assert len(set(draws)) == 4000
    assert statistics.mean(draws) == pytest.approx(0.5, abs=0.02)


def test_failures_have_the_asked_rate_and_latency_its_mean():
    noise = ToolNoise(3, failure_rate=0.1, latency_s=0.2)
    fails, seconds = zip(*(noise.draw() for _ in range(4000)), strict=True)
    assert sum(fails) / 4000 == pytest.approx(0.1, abs=0.015)
    assert statistics.mean(seconds) == pytest.approx(0.2, rel=0.05)
    assert noise.draws == 4000


def test_the_number_of_draws_is_the_whole_state():
    noise, copy = ToolNoise(3, failure_rate=0.5, latency_s=1.0), ToolNoise(3, failure_rate=0.5, latency_s=1.0)
    for _ in range(5):
        noise.draw()
    copy.draws = noise.draws
    assert [noise.draw() for _ in range(5)] == [copy.draw() for _ in range(5)]
    other = ToolNoise(4, failure_rate=0.5, latency_s=1.0)
    other.draws = 5
    copy.draws = 5
    assert [copy.draw() for _ in range(5)] != [other.draw() for _ in range(5)]


async def test_a_failed_call_changes_nothing_and_may_be_repeated():
    source = load_source(EnvSection(transient_failure_rate=0.5))
    task = source.get("research/train/1/0")
    search = source.format.render([source.solution(task).steps[0].call])
    env = source.make_env()
    first_failures = 0
    for seed in range(100):
        await env.reset(task, rollout_seed=seed)
        steps = [await env.step(search) for _ in range(8)]
        calls = [step.calls[0] for step in steps]
        succeeded = [call.tags for call in calls if call.ok]
        assert succeeded[0] == ("needed", "first")
        assert set(succeeded[1:]) <= {("needed", "repeat")}
        for step, call in zip(steps, calls, strict=True):
            if not call.ok:
                assert (call.error, call.tags, step.messages[0].content) == ("transient", (), '{"error":"timeout"}')
        first_failures += not calls[0].ok
    assert 35 <= first_failures <= 65


async def test_simulated_latency_is_waited_for_and_reported():
    source = load_source(EnvSection(transient_failure_rate=0.0, latency_s=0.01))
    task = source.get("research/train/3/0")
    env = source.make_env()
    await env.reset(task, rollout_seed=1)
    begin = time.monotonic()
    step = await env.step(source.format.render([part.call for part in source.solution(task).steps]))
    elapsed = time.monotonic() - begin
    assert step.seconds == pytest.approx(sum(call.seconds for call in step.calls))
    assert 0.005 < step.seconds <= elapsed < step.seconds + 0.5
