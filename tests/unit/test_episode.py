"""One episode: which tokens are sampled, how it ends, and whose fault it was."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.chat import Chat
from actors.episode import Episode, EpisodeLimits, Member
from actors.policy import Sampling, ScriptedPolicy
from cacherl.errors import ConfigError, DeadlineExceeded, EngineDied, EngineError, EnvironmentFault
from cacherl.trajectory import NO_VERSION, Message, Trajectory
from envs.base import EnvStep
from fakes import FakeEnv, FakePolicy, task, word_chat


@pytest.fixture(scope="module")
def words() -> Chat:
    return word_chat()


def limits(**changes: Any) -> EpisodeLimits:
    return EpisodeLimits(**{"max_turns": 8, "max_length": 64, "timeout_s": 60.0, **changes})


async def play(words: Chat, policy: Any, env: Any, *, sampling: Sampling | None = None, **limit: Any) -> Trajectory:
    episode = Episode(
        policy=policy,
        env=env,
        chat=words,
        sampling=sampling or Sampling(temperature=0.5, max_new_tokens=16),
        limits=limits(**limit),
    )
    return await episode.play(Member(task=task(), trajectory_id="g:0", rollout_seed=7))


def says(words: Chat, *texts: str, **options: Any) -> FakePolicy:
    return FakePolicy(words.completion_ids, texts, **options)


async def test_spans_and_mask_of_a_three_turn_episode(words: Chat) -> None:
    policy, env = says(words, "look", "look a", "done"), FakeEnv()
    trajectory = await play(words, policy, env)
    prompt, seen = words.prompt_ids(task().messages), words.observation_ids([Message(role="tool", content="seen", name="look")])
    assert trajectory.token_ids.tolist() == [
        *prompt,
        *words.completion_ids("look"),
        *seen,
        *words.completion_ids("look a"),
        *seen,
        *words.completion_ids("done"),
    ]
    p, s = len(prompt), len(seen)
    assert [turn.completion for turn in trajectory.turns] == [
        (p, p + 2),
        (p + 2 + s, p + 6 + s),
        (p + 6 + 2 * s, p + 8 + 2 * s),
    ]
    assert [turn.observation for turn in trajectory.turns] == [
        (p + 2, p + 2 + s),
        (p + 6 + s, p + 6 + 2 * s),
        (p + 8 + 2 * s, p + 8 + 2 * s),
    ]
    inside = [index for turn in trajectory.turns for index in range(*turn.completion)]
    assert np.flatnonzero(trajectory.loss_mask).tolist() == inside
    assert [turn.text for turn in trajectory.turns] == ["look", "look a", "done"]
    assert env.events == ["reset 7", "step look", "step look a", "step done"]
    assert (trajectory.status.kind, trajectory.status.reason, trajectory.outcome) == ("terminated", None, 1.0)


async def test_the_policy_continues_what_is_recorded(words: Chat) -> None:
    policy = says(words, "look", "done")
    trajectory = await play(words, policy, FakeEnv())
    for turn, (prefix, sampling, seed) in enumerate(policy.calls):
        assert prefix == trajectory.token_ids[: trajectory.turns[turn].completion[0]].tolist()
        assert (sampling.temperature, sampling.max_new_tokens, sampling.greedy, seed) == (0.5, 16, False, 7 + turn)


async def test_every_sampled_token_keeps_its_version_and_log_probability(words: Chat) -> None:
    trajectory = await play(words, says(words, "look", "look a", "done"), FakeEnv())
    mask = trajectory.loss_mask
    assert trajectory.policy_versions[mask].tolist() == list(range(8))
    assert set(trajectory.policy_versions[~mask].tolist()) == {NO_VERSION}
    assert (trajectory.rollout_logprobs[mask] * -8).tolist() == [1, 2, 1, 2, 3, 4, 1, 2]
    assert set(trajectory.rollout_logprobs[~mask].tolist()) == {0.0}
    assert trajectory.version_range == (0, 7)


async def test_an_episode_is_not_scored_but_keeps_all_that_its_reward_needs(words: Chat) -> None:
    trajectory = await play(words, says(words, "look", "done"), FakeEnv(outcome=0.5, potentials=[0.25, 0.75]))
    assert [turn.rewards for turn in trajectory.turns] == [{}, {}]
    assert (trajectory.rewards, trajectory.outcome) == ({}, 0.5)
    assert [turn.potential for turn in trajectory.turns] == [0.25, 0.75]
    assert trajectory.prompt == task().messages


async def test_what_is_known_of_member_and_turns_is_recorded(words: Chat) -> None:
    before = time.time()
    trajectory = await play(words, says(words, "look", "done", delay_s=0.05), FakeEnv(delay_s=0.02))
    assert (trajectory.trajectory_id, trajectory.task_id, trajectory.family) == ("g:0", "fake/train/1/0", "fake")
    assert (trajectory.level, trajectory.split, trajectory.task_seed, trajectory.rollout_seed) == (1, "train", 0, 7)
    assert (trajectory.temperature, trajectory.source) == (0.5, "policy")
    assert before <= trajectory.started_at <= time.time() - trajectory.duration_s + 0.05
    assert trajectory.duration_s >= 0.14
    first, last = trajectory.turns
    assert (first.state_hash, last.state_hash, first.finish_reason) == ("begin", "end", "stop")
    assert [message.content for message in first.messages] == ["seen"]
    assert first.generate_s == pytest.approx(0.05, abs=0.04)
    assert first.tool_s == pytest.approx(0.02, abs=0.02)


async def test_a_failed_call_is_data(words: Chat) -> None:
    for error in ("parse", "tool", "transient"):
        trajectory = await play(words, says(words, "look", "done"), FakeEnv(error=error))
        assert trajectory.status.kind == "terminated"
        assert [call.error for call in trajectory.turns[0].calls] == [error]


async def test_out_of_turns(words: Chat) -> None:
    trajectory = await play(words, says(words, "look"), FakeEnv(), max_turns=3)
    assert (trajectory.status.kind, trajectory.status.reason, len(trajectory.turns)) == ("truncated", "turns", 3)
    assert trajectory.outcome == 0.25


async def test_a_completion_that_is_cut_off_ends_the_episode(words: Chat) -> None:
    policy = says(words, "look", "look a look", finish=["stop", "length"])
    env = FakeEnv()
    trajectory = await play(words, policy, env, sampling=Sampling(temperature=1.0, max_new_tokens=3))
    assert (trajectory.status.reason, trajectory.outcome) == ("tokens", 0.25)
    last = trajectory.turns[-1]
    assert (last.text, last.finish_reason, last.calls) == ("look a", "length", ())
    assert last.observation == (len(trajectory), len(trajectory))
    assert env.events == ["reset 7", "step look"]


async def test_the_context_limit_bounds_completions(words: Chat) -> None:
    prompt = len(words.prompt_ids(task().messages))
    policy = says(words, "look a look a look", finish=["length"])
    trajectory = await play(words, policy, FakeEnv(), max_length=prompt + 4)
    assert policy.calls[0][1].max_new_tokens == 4
    assert (trajectory.status.reason, len(trajectory)) == ("context", prompt + 4)


async def test_the_context_limit_cuts_observations(words: Chat) -> None:
    prompt = len(words.prompt_ids(task().messages))
    env = FakeEnv(result="seen seen seen seen")
    trajectory = await play(words, says(words, "look"), env, max_length=prompt + 5)
    assert (trajectory.status.reason, len(trajectory), trajectory.outcome) == ("context", prompt + 5, 0.25)
    assert trajectory.turns[0].observation == (prompt + 2, prompt + 5)
    assert trajectory.turns[0].messages[0].content == "seen seen seen seen"
    whole = words.observation_ids(trajectory.turns[0].messages)
    assert trajectory.token_ids[-3:].tolist() == whole[:3]


async def test_a_prompt_without_room_for_a_completion_is_a_setting_to_change(words: Chat) -> None:
    prompt = len(words.prompt_ids(task().messages))
    policy = says(words, "done")
    with pytest.raises(ConfigError, match=f"the prompt of task fake/train/1/0 has {prompt} tokens, .* within {prompt};"):
        await play(words, policy, FakeEnv(), max_length=prompt)
    assert policy.calls == []
    assert len(await play(words, says(words, "a", finish=["length"]), FakeEnv(), max_length=prompt + 1)) == prompt + 1


async def test_out_of_time_between_turns(words: Chat) -> None:
    trajectory = await play(words, says(words, "look", delay_s=0.06), FakeEnv(delay_s=0.06), timeout_s=0.2)
    assert (trajectory.status.reason, trajectory.outcome) == ("timeout", 0.25)
    assert 1 <= len(trajectory.turns) <= 2


async def test_a_tool_that_hangs_ends_the_episode_with_its_turn_recorded(words: Chat) -> None:
    begin = time.monotonic()
    trajectory = await play(words, says(words, "look"), FakeEnv(delay_s=3600), timeout_s=0.1)
    assert (trajectory.status.reason, trajectory.outcome) == ("timeout", 0.25)
    assert [(turn.text, turn.calls) for turn in trajectory.turns] == [("look", ())]
    assert time.monotonic() - begin < 2


class Slowing(FakePolicy):
    """Quick at first, then hanging."""

    async def complete(self, prefix: Any, sampling: Sampling, *, seed: int) -> Any:
        if self.calls:
            await asyncio.Event().wait()
        return await super().complete(prefix, sampling, seed=seed)


async def test_an_engine_that_hangs_ends_the_episode_with_what_was_played(words: Chat) -> None:
    trajectory = await play(words, Slowing(words.completion_ids, ["look"]), FakeEnv(), timeout_s=0.1)
    assert (trajectory.status.reason, len(trajectory.turns)) == ("timeout", 1)


async def test_an_engine_that_never_answers_is_infrastructure(words: Chat) -> None:
    with pytest.raises(DeadlineExceeded, match=r"^gave up after 0\.1 s waiting for the engine to complete turn 0 of g:0$"):
        await play(words, says(words, "look", delay_s=3600), FakeEnv(), timeout_s=0.1)


async def test_an_environment_that_does_not_reset_is_infrastructure(words: Chat) -> None:
    class Stuck(FakeEnv):
        async def reset(self, task: Any, *, rollout_seed: int) -> None:
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match=r"waiting for the environment to reset for g:0$"):
        await play(words, says(words, "look"), Stuck(), timeout_s=0.1)


async def test_the_event_loop_s_lag_costs_no_episode_its_time(words: Chat) -> None:
    async def hog() -> None:
        for _ in range(2):
            await asyncio.sleep(0.03)
            time.sleep(0.35)  # noqa: ASYNC251 - the lag under test

    lag = asyncio.create_task(hog())
    trajectory = await play(words, says(words, "look", "look", "look", "done", delay_s=0.05), FakeEnv(), timeout_s=0.5)
    await lag
    assert (trajectory.status.kind, trajectory.outcome) == ("terminated", 1.0)
    assert trajectory.duration_s > 0.7
    assert sum(turn.generate_s for turn in trajectory.turns) < 0.5


@pytest.mark.parametrize("text", ["look", ""])
async def test_an_aborted_completion_is_an_engine_error(words: Chat, text: str) -> None:
    policy = says(words, text, finish=["abort"])
    with pytest.raises(EngineError, match=r"^the engine aborted turn 0 of g:0$"):
        await play(words, policy, FakeEnv())


async def test_a_completion_without_tokens_is_an_engine_error(words: Chat) -> None:
    with pytest.raises(EngineError, match=r"^the engine aborted turn 1 of g:0$"):
        await play(words, FakePolicy(lambda text: words.completion_ids(text) if text else [], ["look", ""]), FakeEnv())


async def test_log_probabilities_that_are_not_finite_are_an_engine_error(words: Chat) -> None:
    class Broken(FakePolicy):
        async def complete(self, prefix: Any, sampling: Sampling, *, seed: int) -> Any:
            completion = await super().complete(prefix, sampling, seed=seed)
            completion.logprobs[0] = np.nan
            return completion

    with pytest.raises(EngineError, match="turn 0 of g:0 with log-probabilities that are not finite"):
        await play(words, Broken(words.completion_ids, ["done"]), FakeEnv())


@pytest.mark.parametrize(
    ("policy_error", "env_error", "kind", "message"),
    [
        (EngineDied("dead"), None, EngineDied, "^dead$"),
        (RuntimeError("oops"), None, EngineError, r"^the engine failed at turn 0 of g:0: RuntimeError\('oops'\)$"),
        (None, EnvironmentFault("ours"), EnvironmentFault, "^ours$"),
        (None, KeyError("id"), EnvironmentFault, r"^environment 'fake' failed on task fake/train/1/0: KeyError\('id'\)$"),
    ],
)
async def test_whose_fault_it_was(
    words: Chat, policy_error: Exception | None, env_error: Exception | None, kind: type[Exception], message: str
) -> None:
    policy = says(words, "look", failures=[policy_error] if policy_error else [])
    with pytest.raises(kind, match=message) as caught:
        await play(words, policy, FakeEnv(failures=[env_error] if env_error else []))
    assert type(caught.value) is kind


async def test_faults_of_reset_verdict_and_reward_have_a_type(words: Chat) -> None:
    class Broken(FakeEnv):
        async def reset(self, task: Any, *, rollout_seed: int) -> None:
            raise OSError("no sandbox")

    class Undecided(FakeEnv):
        def verdict(self) -> float:
            raise ValueError("no verdict")

    with pytest.raises(EnvironmentFault, match="no sandbox"):
        await play(words, says(words, "look"), Broken())
    with pytest.raises(EnvironmentFault, match="no verdict"):
        await play(words, says(words, "look"), Undecided(), max_turns=1)


async def test_a_scripted_policy_stops_where_it_may_not_go_on(words: Chat) -> None:
    policy = ScriptedPolicy(lambda: "look a look", words.completion_ids, who="the oracle", source="demonstration")
    trajectory = await play(words, policy, FakeEnv(), sampling=Sampling(temperature=1.0, max_new_tokens=2))
    assert (trajectory.status.reason, trajectory.source, trajectory.turns[0].text) == ("tokens", "demonstration", "look ")
    assert (trajectory.num_sampled, trajectory.version_range) == (2, (0, 0))


@pytest.mark.parametrize("verdict", [float("nan"), float("inf"), -0.5, 1.5])
async def test_a_verdict_that_is_no_share_is_a_fault_of_the_environment(words: Chat, verdict: float) -> None:
    class Odd(FakeEnv):
        def verdict(self) -> float:
            return verdict

    with pytest.raises(EnvironmentFault, match=r"^the verdict must lie in \[0, 1\], got"):
        await play(words, says(words, "look"), Odd(), max_turns=1)
    for name in ("outcome", "potential"):
        facts: dict[str, Any] = {"outcome": 1.0, "potential": None, name: verdict}
        with pytest.raises(EnvironmentFault, match=rf"^EnvStep: {name} must lie in \[0, 1\], got"):
            EnvStep(messages=(), calls=(), terminated=True, state_hash="", **facts)


async def test_text_that_no_tokenizer_reads_is_a_fault_of_the_environment(words: Chat) -> None:
    class Garbled(FakeEnv):
        async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
            step = await super().step(text, finish_reason=finish_reason)
            return replace(step, messages=tuple(replace(message, content="\ud800") for message in step.messages))

    with pytest.raises(EnvironmentFault, match="environment 'fake' failed on task fake/train/1/0: "):
        await play(words, says(words, "look"), Garbled())
