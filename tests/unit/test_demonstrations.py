"""Demonstrations are trajectories like any other, with the agent's tokens as the sampled ones."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from actors.chat import Chat
from actors.demonstrations import demonstrate
from actors.episode import EpisodeLimits
from actors.policy import Sampling
from actors.scoring import composer_of
from cacherl.config import RunConfig
from cacherl.environment_settings import EnvSection
from cacherl.errors import EnvironmentFault
from cacherl.trajectory import Trajectory
from deploy.tiny_model import build_tokenizer
from envs.agents import Agent, OracleAgent, TeacherAgent
from envs.base import TaskSource
from envs.registry import load_source
from fakes import FakeEnv

#: Share of tool calls that fail.
FAILURES = 0.1


async def demonstrations(
    source: TaskSource, chat: Chat, agents: list[Agent], level: int, *, max_turns: int = 30, max_new_tokens: int = 32
) -> list[Trajectory]:
    rng = random.Random(level)
    tasks = [source.sample(rng, split="train", level=level) for _ in agents]
    return await demonstrate(
        tasks,
        agents.__getitem__,
        source=source,
        chat=chat,
        limits=EpisodeLimits(max_turns=max_turns, max_length=512, timeout_s=60.0),
        sampling=Sampling(temperature=1.0, max_new_tokens=max_new_tokens),
    )


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_an_oracle_s_demonstration(source: TaskSource, chat: Chat, level: int) -> None:
    played = await demonstrations(source, chat, [OracleAgent(source)] * 20, level)
    for trajectory in played:
        assert (trajectory.outcome, trajectory.status.kind, trajectory.source) == (1.0, "terminated", "demonstration")
        assert trajectory.level == level
        said = [chat.completion_ids(turn.text) for turn in trajectory.turns]
        assert trajectory.token_ids[trajectory.loss_mask].tolist() == [token for ids in said for token in ids]
        assert [trajectory.token_ids[slice(*turn.completion)].tolist() for turn in trajectory.turns] == said
        assert set(trajectory.policy_versions[trajectory.loss_mask].tolist()) == {0}
        assert not trajectory.rollout_logprobs.any()
        prompt = chat.prompt_ids(source.get(trajectory.task_id).messages)
        assert trajectory.token_ids[: trajectory.prompt_length].tolist() == prompt
    failed = sum(not call.ok for trajectory in played for turn in trajectory.turns for call in turn.calls)
    turns = sum(len(trajectory.turns) for trajectory in played)
    assert turns == 20 * (2 * level + 1) + failed


async def test_a_demonstration_is_scored_like_a_rollout_by_who_needs_it(chat: Chat) -> None:
    calm = load_source(EnvSection(transient_failure_rate=0.0))
    played = await demonstrations(calm, chat, [OracleAgent(calm)], 2)
    assert played[0].reward_parts == {}
    (trajectory,) = composer_of(RunConfig(), calm).score(played)
    assert trajectory.reward_parts == pytest.approx({"final": 1.0, "tool_use": 4 * 0.05, "step_penalty": 5 * -0.02})


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_success_of_the_sloppy_teacher_is_as_its_sloppiness_implies(source: TaskSource, chat: Chat, level: int) -> None:
    """With f failures and sloppiness s, each of 2L calls succeeds before the teacher gives up with probability
    q = (1 - f) / (1 - f (1 - s)), and each of L - 1 hops goes on with probability 1 - s."""
    sloppiness, count = 0.65, 300
    agents: list[Agent] = [TeacherAgent(source, sloppiness=sloppiness, seed=seed) for seed in range(count)]
    played = await demonstrations(source, chat, agents, level)
    persistence = (1 - FAILURES) / (1 - FAILURES * (1 - sloppiness))
    expected = persistence ** (2 * level) * (1 - sloppiness) ** (level - 1)
    success = np.mean([trajectory.outcome for trajectory in played])
    assert success == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / count))


async def test_demonstrations_repeat_themselves(source: TaskSource, chat: Chat) -> None:
    agents: list[Agent] = [TeacherAgent(source, sloppiness=0.5, seed=seed) for seed in range(10)]
    first, again = await demonstrations(source, chat, agents, 3), await demonstrations(source, chat, agents, 3)
    assert [t.token_ids.tolist() for t in first] == [t.token_ids.tolist() for t in again]
    assert [t.trajectory_id for t in first] == [f"demonstration-{index}" for index in range(10)]
    assert len({t.rollout_seed for t in first}) == 10


async def test_an_agent_that_never_ends_is_cut_off(source: TaskSource, chat: Chat) -> None:
    (trajectory,) = await demonstrations(source, chat, [OracleAgent(source)], 3, max_turns=2)
    assert (trajectory.status.reason, trajectory.outcome, len(trajectory.turns)) == ("turns", 0.0, 2)


async def test_a_broken_environment_is_closed_before_its_fault_is_raised(
    source: TaskSource, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = FakeEnv(failures=[RuntimeError("planted")])
    monkeypatch.setattr(source, "make_env", lambda: broken)
    with pytest.raises(EnvironmentFault, match="planted"):
        await demonstrations(source, chat, [OracleAgent(source)], 1)
    assert broken.events[-1] == "close"


@pytest.mark.parametrize("level", [2, 3, 5])
async def test_code_is_demonstrated_in_words_that_the_tiny_model_knows(level: int) -> None:
    source = load_source(EnvSection(name="code", levels=(level,), transient_failure_rate=FAILURES))
    tokenizer = build_tokenizer(source.vocabulary(), source.tags(), 512)
    played = await demonstrations(source, Chat(tokenizer), [OracleAgent(source)] * 4, level, max_new_tokens=96)
    assert [(trajectory.outcome, trajectory.status.kind) for trajectory in played] == [(1.0, "terminated")] * 4
    assert tokenizer.unk_token_id not in {token for trajectory in played for token in trajectory.token_ids.tolist()}
