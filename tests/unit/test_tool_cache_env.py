"""Episodes behind the tool-result cache: the same as without, but for the time; in wider tiers never of another state."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cached_world import Shelf, ShelfFamily
from cacherl.environment_settings import EnvSection, ToolCacheSection
from envs.agents import OracleAgent, RandomAgent
from envs.base import EnvStep, PlannedCall, TaskSource
from envs.episode import Episode, play
from envs.registry import load_source
from envs.source import SimulatedSource

ALL_TIERS = ("exact", "normalised", "best_effort")
ON = ToolCacheSection(mode="record_replay")
WIDE = ToolCacheSection(mode="record_replay", tiers=ALL_TIERS, similar={"look": {"key": 0.2}})


def shelf(cache: ToolCacheSection, *, failure_rate: float = 0.0) -> SimulatedSource:
    return SimulatedSource(ShelfFamily(), EnvSection(tool_cache=cache, transient_failure_rate=failure_rate))


def steps(source: TaskSource, calls: Sequence[PlannedCall], *, rollout_seed: int = 0) -> list[EnvStep]:
    async def act() -> list[EnvStep]:
        env = source.make_env()
        await env.reset(source.get("shelf/train/1/0"), rollout_seed=rollout_seed)
        return [await env.step(source.format.render([call])) for call in calls]

    return asyncio.run(act())


def plain(step: EnvStep) -> EnvStep:
    """A step without what the cache may change: the time and the tier."""
    calls = tuple(dataclasses.replace(call, seconds=0.0, tier=None) for call in step.calls)
    return dataclasses.replace(step, calls=calls, seconds=0.0)


keys = st.sampled_from(["a", "A", " a", "ab", "abc", "b", "1", "1.0"])
calls = st.builds(PlannedCall, name=st.just("look"), arguments=st.fixed_dictionaries({"key": keys})) | st.builds(
    PlannedCall, name=st.just("put"), arguments=st.fixed_dictionaries({"key": keys, "value": st.integers(0, 2)})
)
episodes = st.lists(st.tuples(st.lists(calls, max_size=8), st.integers(0, 2)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(episodes)
def test_with_the_exact_tier_an_episode_is_the_same_as_without_a_cache(played: list[tuple[list[PlannedCall], int]]) -> None:
    cached, bare = shelf(ON, failure_rate=0.3), shelf(ToolCacheSection(), failure_rate=0.3)
    for acts, seed in played:
        seen, truth = steps(cached, acts, rollout_seed=seed), steps(bare, acts, rollout_seed=seed)
        assert list(map(plain, seen)) == list(map(plain, truth))


@settings(max_examples=100, deadline=None)
@given(episodes)
def test_no_tier_ever_serves_a_result_of_another_state(played: list[tuple[list[PlannedCall], int]]) -> None:
    """Every result tells the shelf that it was given for; what the agent put there itself is the truth."""
    source = shelf(WIDE)
    for acts, _ in played:
        held: dict[str, int] = {}
        for call, step in zip(acts, steps(source, acts), strict=True):
            if call.name == "put":
                held[call.arguments["key"]] = call.arguments["value"]
                assert step.calls[0].tier in ("live", "exact")
            content = json.loads(step.messages[0].content)
            if "error" in content:
                assert not step.calls[0].ok
            else:
                assert content["shelf"] == held
                assert content["key"] in held


def test_wider_tiers_serve_near_calls_of_the_same_state() -> None:
    source = shelf(WIDE)
    put = PlannedCall(name="put", arguments={"key": "abc", "value": 1})
    look, near, far = (PlannedCall(name="look", arguments={"key": key}) for key in ("abc", " ABC", "x"))
    tiers = [[call.tier for step in steps(source, [put, ask]) for call in step.calls] for ask in (look, look, near, far)]
    assert tiers == [["live", "live"], ["exact", "exact"], ["exact", "normalised"], ["exact", "best_effort"]]


def test_a_transient_failure_is_never_recorded() -> None:
    source = shelf(ON, failure_rate=0.5)
    acts = [PlannedCall(name="put", arguments={"key": "a", "value": 1})] * 40
    outcomes = Counter((step.calls[0].error, step.calls[0].tier) for step in steps(source, acts))
    assert outcomes[None, "live"] == 2  # on an empty shelf, and on one with the thing on it
    assert outcomes[None, "exact"] > 5
    assert outcomes["transient", None] > 5
    assert set(outcomes) == {(None, "live"), (None, "exact"), ("transient", None)}


def test_other_settings_are_another_world(tmp_path: Any) -> None:
    cache = ToolCacheSection(mode="record_replay", path=tmp_path / "tools.jsonl")
    look = [PlannedCall(name="put", arguments={"key": "a"})]

    def tier(**section: Any) -> str | None:
        source = SimulatedSource(ShelfFamily(), EnvSection(tool_cache=cache, transient_failure_rate=0.0, **section))
        return steps(source, look)[0].calls[0].tier

    assert tier(settings={"size": 3}) == "live"
    assert tier(settings={"size": 4}) == "live"
    assert tier() == "live"
    assert tier(sandbox={"output_bytes": 128}) == "live"
    assert [tier(settings={"size": 3}), tier(settings={"size": 4}), tier(), tier(latency_s=0.001)] == ["exact"] * 4


def test_replay_calls_no_tool_and_says_what_is_not_recorded(tmp_path: Any) -> None:
    path = tmp_path / "tools.jsonl"
    acts = [PlannedCall(name="put", arguments={"key": "a", "value": 1}), PlannedCall(name="look", arguments={"key": "a"})]
    recorded = steps(shelf(ToolCacheSection(mode="record", path=path)), acts)
    before = Shelf.calls
    replay = shelf(ToolCacheSection(mode="replay", path=path))
    served = steps(replay, [*acts, PlannedCall(name="put", arguments={"key": "b", "value": 1})])
    assert Shelf.calls == before
    assert list(map(plain, served[:2])) == list(map(plain, recorded))
    assert [step.calls[0].tier for step in served] == ["exact", "exact", None]
    assert (served[2].calls[0].error, served[2].messages[0].content) == ("unrecorded", '{"error":"not recorded"}')
    assert {"not", "recorded"} <= set(replay.vocabulary())


@pytest.mark.parametrize("family", ["research", "trip", "data"])
def test_the_families_play_the_same_behind_a_cache(family: str) -> None:
    bare, cached = (load_source(EnvSection(name=family, tool_cache=section)) for section in (ToolCacheSection(), ON))
    rng = random.Random(0)
    tasks = [bare.sample(rng, split="train", level=level) for level in bare.levels("train") for _ in range(5)]
    tiers: Counter[Any] = Counter()
    agents = [OracleAgent(bare), OracleAgent(bare), RandomAgent(bare, seed=1), RandomAgent(bare, seed=1)]
    for task in tasks:
        for seed, agent in enumerate(agents):
            truth, seen = (
                asyncio.run(play(source.make_env(), task, agent, rollout_seed=seed, max_turns=40)) for source in (bare, cached)
            )
            assert (seen.outcome, seen.messages) == (truth.outcome, truth.messages)
            assert [plain(turn.step) for turn in seen.turns] == [plain(turn.step) for turn in truth.turns]
            tiers.update(call.tier for turn in seen.turns for call in turn.step.calls if call.error in (None, "tool"))
    assert set(tiers) == {"live", "exact"}


def test_latency_is_waited_for_only_where_a_tool_is_called() -> None:
    section = EnvSection(latency_s=0.01, transient_failure_rate=0.0, tool_cache=ON)
    source = load_source(section)
    task = source.sample(random.Random(0), split="train", level=2)

    def played() -> Episode:
        return asyncio.run(play(source.make_env(), task, OracleAgent(source), rollout_seed=0, max_turns=16))

    waited = [sum(turn.step.seconds for turn in episode.turns) for episode in (played(), played())]
    assert waited[0] > 0
    assert waited[1] == 0
