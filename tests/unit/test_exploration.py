"""Exploration: who of a group is played by the explorer, what comes of it, and settings without an effect."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from actors.chat import Chat
from actors.episode import EpisodeLimits, Member
from actors.exploration import Explorers, explored_members
from actors.players import PolicyPlayer
from actors.policy import Sampling
from actors.rollout import GroupRequest, PlayedGroup, Rollout
from actors.scoring import composer_of
from actors.worker import make_rollout
from cacherl.config import parse_config
from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError, EngineError, NoSolutionError
from cacherl.exploration_settings import ExplorationSection
from cacherl.trajectory import TrajectoryGroup
from deploy.launch import run_training
from deploy.priority import FreshPriority
from deploy.tasks import TaskStream
from envs.base import Task, TaskSource
from envs.registry import load_source
from fakes import CountingScorer, FakePolicy

LIMITS = EpisodeLimits(max_turns=30, max_length=512, timeout_s=60.0)
SAMPLING = Sampling(temperature=0.75, max_new_tokens=32)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_members_are_the_explorer_s_at_the_configured_rate(rate: float) -> None:
    size, groups = 16, 400
    count = sum(len(explored_members(seed, size, rate)) for seed in range(groups))
    assert count / (size * groups) == pytest.approx(rate, abs=4 * (rate * (1 - rate) / (size * groups)) ** 0.5)


def test_of_every_group_a_member_stays_the_policy_s_and_any_may() -> None:
    drawn = [explored_members(seed, 3, 0.999) for seed in range(200)]
    assert {len(places) for places in drawn} == {2}
    assert {tuple(sorted({0, 1, 2} - places)) for places in drawn} == {(0,), (1,), (2,)}
    assert explored_members(5, 1, 0.999) == frozenset()


def test_the_seed_of_the_group_fixes_the_draw() -> None:
    assert [explored_members(seed, 8, 0.5) for seed in range(20)] == [explored_members(seed, 8, 0.5) for seed in range(20)]
    assert len({explored_members(seed, 8, 0.5) for seed in range(20)}) > 15
    assert not any(explored_members(seed, 8, 0.0) for seed in range(20))


def rollout(source: TaskSource, chat: Chat, *, policy: FakePolicy | None = None, **settings: Any) -> Rollout:
    policy = policy or FakePolicy(chat.completion_ids, ["<answer>nobody</answer>"])
    explorers = Explorers(
        settings=ExplorationSection(**settings), policy=policy, source=source, chat=chat, sampling=SAMPLING, limits=LIMITS
    )
    return Rollout(
        player=PolicyPlayer(policy=policy, chat=chat, sampling=SAMPLING, limits=LIMITS),
        make_env=source.make_env,
        scorer=CountingScorer(),
        max_retries=0,
        explorer_of=explorers,
    )


def request(source: TaskSource, *, size: int = 8, seed: int = 3, rate: float = 0.5) -> GroupRequest:
    task = source.sample(random.Random(1), split="train", level=2)
    return GroupRequest(group_id="run-1", task=task, size=size, seed=seed, exploration=rate)


def explored_of(played: PlayedGroup) -> tuple[TrajectoryGroup, dict[bool, set[Any]]]:
    """The group, and (source, outcome, temperature) of the policy's members (False) and the explorer's (True)."""
    assert played.group is not None
    facts: dict[bool, set[Any]] = {False: set(), True: set()}
    for one in played.group.trajectories:
        facts[one.trajectory_id in played.explored].add((one.source, one.outcome, one.temperature))
    return played.group, facts


async def test_an_oracle_solves_what_the_policy_fails(source: TaskSource, chat: Chat) -> None:
    sent = request(source)
    played = await rollout(source, chat, rate=0.5, explorer="teacher").group(sent)
    group, facts = explored_of(played)
    assert played.explored == {f"run-1:{index}" for index in explored_members(sent.seed, 8, 0.5)}
    assert 0 < len(played.explored) < len(group) == 8
    assert facts == {False: {("policy", 0.0, 0.75)}, True: {("demonstration", 1.0, 0.75)}}
    said = [tuple(turn.text for turn in one.turns) for one in group.trajectories if one.foreign]
    assert all(len(texts) >= 5 for texts in said)


async def test_from_the_settings_to_a_group_that_is_worth_training_on(source: TaskSource, chat: Chat) -> None:
    """The actor's own rollout, reward and priority, with a policy that always fails."""
    priorities = {}
    for rate in (0.0, 0.5):
        config = parse_config({"exploration": {"rate": rate, "explorer": "teacher"} if rate else {}})
        policy = FakePolicy(chat.completion_ids, ["<answer>nobody</answer>"])
        actor = make_rollout(config, policy, source, chat, composer_of(config, source), SAMPLING)
        played = await actor.group(TaskStream(source, config, "run")())
        assert played.group is not None
        assert all((one.outcome == 1.0) == (one.trajectory_id in played.explored) for one in played.group.trajectories)
        priorities[rate] = FreshPriority(config)(played.group)
    assert priorities[0.0] == 0.0
    assert priorities[0.5] > 0.5


async def test_siblings_of_a_sloppy_teacher_are_careless_in_ways_of_their_own(chat: Chat) -> None:
    calm = load_source(EnvSection(transient_failure_rate=0.0))
    teacher = rollout(calm, chat, rate=0.9, explorer="teacher", sloppiness=0.5)
    group, facts = explored_of(await teacher.group(request(calm, size=32, rate=0.9)))
    assert {outcome for _, outcome, _ in facts[True]} == {0.0, 1.0}
    again, _ = explored_of(await teacher.group(request(calm, size=32, rate=0.9)))
    assert [t.token_ids.tolist() for t in again.trajectories] == [t.token_ids.tolist() for t in group.trajectories]


async def test_random_members_differ_from_each_other(source: TaskSource, chat: Chat) -> None:
    group, facts = explored_of(await rollout(source, chat, rate=0.5, explorer="random").group(request(source)))
    assert {kind for kind, _, _ in facts[True]} == {"random"}
    texts = [tuple(turn.text for turn in one.turns) for one in group.trajectories if one.foreign]
    assert len(set(texts)) == len(texts) > 1
    assert not any(one.rollout_logprobs.any() for one in group.trajectories if one.foreign)


async def test_the_policy_explores_at_a_temperature_of_its_own(source: TaskSource, chat: Chat) -> None:
    policy = FakePolicy(chat.completion_ids, ["<answer>nobody</answer>"])
    played = await rollout(source, chat, policy=policy, rate=0.5, explorer="policy", temperature=2.0).group(request(source))
    group, facts = explored_of(played)
    assert facts == {False: {("policy", 0.0, 0.75)}, True: {("policy", 0.0, 2.0)}}
    sampled = [sampling.temperature for _, sampling, _ in policy.calls]
    assert sampled == [2.0 if one.trajectory_id in played.explored else 0.75 for one in group.trajectories]
    assert all(one.rollout_logprobs[one.loss_mask].all() for one in group.trajectories)


async def test_a_group_that_nobody_but_the_explorer_finished_is_given_up(source: TaskSource, chat: Chat) -> None:
    sent = request(source)
    own = 8 - len(explored_members(sent.seed, 8, 0.5))
    policy = FakePolicy(chat.completion_ids, ["<answer>nobody</answer>"], failures=[EngineError("gone")] * own)
    played = await rollout(source, chat, policy=policy, rate=0.5, explorer="teacher").group(sent)
    assert (played.group, len(played.errors)) == (None, own)


@pytest.mark.parametrize("problem", [KeyError("no solution"), NoSolutionError("nobody knows")])
async def test_an_agent_s_error_is_not_the_engine_s(
    source: TaskSource, chat: Chat, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def unsolved(task: Task) -> None:
        raise problem

    monkeypatch.setattr(source, "solution", unsolved)
    sent = request(source)
    played = await rollout(source, chat, rate=0.5, explorer="teacher").group(sent)
    ours = isinstance(problem, NoSolutionError)
    expected = {str(problem) if ours else f"TeacherAgent of {name} failed: {problem!r}" for name in played.explored}
    assert set(played.errors) == expected
    assert played.group is not None
    assert {one.source for one in played.group.trajectories} == {"policy"}


async def test_a_group_that_asks_for_an_explorer_that_is_not_there_is_refused(source: TaskSource, chat: Chat) -> None:
    player = PolicyPlayer(policy=FakePolicy(chat.completion_ids, [""]), chat=chat, sampling=SAMPLING, limits=LIMITS)
    alone = Rollout(player=player, make_env=source.make_env, scorer=CountingScorer(), max_retries=0)
    with pytest.raises(ValueError, match=r"^group run-1: exploration 0.5 needs an explorer, there is none$"):
        await alone.group(request(source))


@pytest.mark.parametrize(("updates", "rates"), [(None, [0.5, 0.5, 0.5]), (3, [0.5, 0.5, 0.0])])
def test_it_ends_with_the_updates(updates: int | None, rates: list[float]) -> None:
    section = ExplorationSection(rate=0.5, updates=updates)
    assert [section.rate_at(version) for version in (0, 2, 3)] == rates


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"exploration": {"explorer": "teacher"}}, "explorer teacher has no effect without exploration.rate above 0"),
        ({"exploration": {"updates": 5}}, "updates 5 has no effect without exploration.rate above 0"),
        (
            {"exploration": {"rate": 0.1, "temperature": 2.0}},
            "temperature 2.0 has no effect without exploration.explorer policy",
        ),
        (
            {"exploration": {"rate": 0.1, "explorer": "policy", "sloppiness": 0.5}},
            "sloppiness 0.5 has no effect without exploration.explorer teacher",
        ),
        ({"exploration": {"rate": 1.0}}, "exploration.rate: Input should be less than 1"),
        (
            {"exploration": {"rate": 0.1, "explorer": "me"}},
            "exploration.explorer: Input should be 'random', 'teacher' or 'policy'",
        ),
        (
            {"exploration": {"rate": 0.1}, "rollout": {"group_size": 1}, "advantage": {"estimator": "gae"}},
            "exploration.rate 0.1 has no effect with rollout.group_size 1",
        ),
        (
            {"exploration": {"rate": 0.1, "explorer": "policy"}, "rollout": {"temperature": 1.5}},
            "exploration.temperature 1.5 is rollout.temperature",
        ),
    ],
)
def test_settings_without_an_effect_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(sections)
    assert message in str(refused.value)


def test_a_teacher_without_solutions_is_refused_before_anything_starts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from envs import preflight

    def unsolved(task: Any) -> Any:
        raise preflight.NoSolutionError("nobody knows")

    source = load_source(EnvSection(levels=(2,)))
    monkeypatch.setattr(source, "solution", unsolved)
    monkeypatch.setattr("deploy.launch.ready_source", lambda section: source)
    config = parse_config(
        {
            "run": {"dir": str(tmp_path / "runs")},
            "env": {"levels": [2]},
            "exploration": {"rate": 0.1, "explorer": "teacher"},
        }
    )
    with pytest.raises(
        ConfigError, match=r"^exploration.explorer teacher follows solutions, but env.name 'research' knows none"
    ):
        run_training(config)
    assert not (tmp_path / "runs").exists()


async def test_a_member_s_explorer_is_made_for_it(source: TaskSource, chat: Chat) -> None:
    """Retries of a member meet the same explorer, whatever was played in between."""
    explorers = Explorers(
        settings=ExplorationSection(rate=0.5),
        policy=FakePolicy(chat.completion_ids, [""]),
        source=source,
        chat=chat,
        sampling=SAMPLING,
        limits=LIMITS,
    )
    task = source.sample(random.Random(1), split="train", level=1)
    members = [Member(task=task, trajectory_id=f"t-{seed}", rollout_seed=seed) for seed in (1, 2, 1)]
    played = [await explorers(member).play(member, source.make_env()) for member in members]
    assert np.array_equal(played[0].token_ids, played[2].token_ids)
    assert not np.array_equal(played[0].token_ids, played[1].token_ids)
