"""Foreign text environments: Gymnasium's and SkyRL-gym's methods are all that is asked of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from cacherl.environment_settings import EnvSection, ToolCacheSection
from cacherl.errors import ConfigError, EnvironmentFault
from cacherl.trajectory import Message
from envs.adapters.gymnasium import gymnasium_source
from envs.adapters.skyrl import skyrl_source
from envs.agents import ScriptedAgent
from envs.episode import play


class Guess:
    """Gymnasium: guess a number below 10 x level in five turns."""

    closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert options is not None
        self.top = 10 * options["level"]
        self.secret = random.Random(seed).randrange(self.top)
        self.left = 5
        return f"Guess a number below {self.top}.", {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        right = action.strip() == str(self.secret)
        hint = {"higher": self.secret > int(action)} if action.strip().isdecimal() else "a number, please"
        return hint, 1.0 if right else -0.1, right, self.left == 0 and not right, {"guesses": 5 - self.left}

    def close(self) -> None:
        Guess.closed += 1


def secret(level: int, seed: int) -> int:
    return random.Random(seed).randrange(10 * level)


def test_an_episode_of_a_gymnasium_environment() -> None:
    source = gymnasium_source(EnvSection(), Guess, family="guess", levels=(1, 2))
    task = source.sample(random.Random(3), split="train", level=2)
    assert source.get(task.task_id) == task
    assert task.messages == (Message(role="user", content="Guess a number below 20."),)
    right = secret(2, task.seed)
    before = Guess.closed
    agent = ScriptedAgent(["what?", str(right - 1), str(right)])
    env = source.make_env()
    episode = asyncio.run(play(env, task, agent, rollout_seed=0, max_turns=9))
    assert [message.content for message in episode.messages[1:]] == [
        "what?", "a number, please", str(right - 1), '{"higher":true}', str(right)
    ]  # fmt: skip
    assert episode.outcome == pytest.approx(0.8)
    asyncio.run(env.close())
    assert Guess.closed == before + 1


def test_a_truncated_episode_ends_and_the_verdict_may_be_ones_own() -> None:
    source = gymnasium_source(EnvSection(), Guess, outcome=lambda total, info: info["guesses"] / 10)
    task = source.all_tasks(1)[0]
    episode = asyncio.run(play(source.make_env(), task, ScriptedAgent(["-1"]), rollout_seed=0, max_turns=9))
    assert (episode.outcome, len(episode.turns), episode.truncated) == (0.5, 5, False)
    wrong = gymnasium_source(EnvSection(), Guess, outcome=lambda total, info: total)
    with pytest.raises(EnvironmentFault, match=r"outcome of an episode must lie in \[0, 1\], got -0\.5"):
        asyncio.run(play(wrong.make_env(), task, ScriptedAgent(["-1"]), rollout_seed=0, max_turns=9))


def test_a_snapshot_of_a_text_episode_resumes() -> None:
    source = gymnasium_source(EnvSection(), Guess)
    task = source.all_tasks(1)[5]
    right = secret(1, 5)

    async def resumed() -> list[Any]:
        env, copy = source.make_env(), source.make_env()
        for each in (env, copy):
            await each.reset(task, rollout_seed=0)
        await env.step("nothing")
        copy.restore(env.snapshot())
        return [await each.step(str(right)) for each in (env, copy)]

    one, other = asyncio.run(resumed())
    assert one == other
    assert one.outcome == pytest.approx(0.9)


class Echo:
    """SkyRL-gym: say the word twice."""

    def __init__(self, row: Any) -> None:
        self.word = row["reward_spec"]["ground_truth"]
        self.said = 0

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        prompt[-1]["content"] += " Twice."
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        self.said += action == self.word
        done = self.said == 2
        observations = [] if done else [{"role": "user", "content": "Again."}]
        return {"observations": observations, "reward": 0.5 * (action == self.word), "done": done, "metadata": {}}


ROWS = [{"prompt": [{"role": "user", "content": f"Say {word}."}], "reward_spec": {"ground_truth": word}} for word in "abcdefgh"]


def test_an_episode_of_a_skyrl_environment() -> None:
    source = skyrl_source(EnvSection(), ROWS, Echo)
    task = source.all_tasks(1)[1]
    assert task.messages == (Message(role="user", content="Say b. Twice."),)
    assert ROWS[1]["prompt"][0]["content"] == "Say b."
    episode = asyncio.run(play(source.make_env(), task, ScriptedAgent(["x", "b"]), rollout_seed=0, max_turns=9))
    assert (episode.outcome, len(episode.turns)) == (1.0, 3)
    assert source.levels("train") == source.levels("val") == (1,)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(EnvironmentFault, match="family 'gymnasium': its environment has no reset and no step"):
        gymnasium_source(EnvSection(), object)
    with pytest.raises(ConfigError, match=r"family 'skyrl': row 0 has no 'prompt' of chat messages, got 'hello'"):
        skyrl_source(EnvSection(), [{"prompt": "hello"}], Echo)
    source = skyrl_source(EnvSection(), ROWS, Echo)
    with pytest.raises(ConfigError, match=r"knows no solutions, so there are no demonstrations; set warm_start\.updates=0"):
        source.solution(source.all_tasks(1)[0])
    with pytest.raises(ConfigError, match="reads text, not tool calls"):
        source.format.render([])
    with pytest.raises(ConfigError, match=r"env\.tool_cache: family 'skyrl' runs its tools in memory"):
        skyrl_source(EnvSection(tool_cache=ToolCacheSection(mode="record_replay")), ROWS, Echo)
