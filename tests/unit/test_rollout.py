"""Groups: failed members are retried, then left out; every seed follows from the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from actors.chat import Chat
from actors.episode import EpisodeLimits
from actors.players import PolicyPlayer
from actors.policy import Sampling
from actors.rollout import GroupRequest, Rollout, close_env, derive_seed
from cacherl.errors import ConfigError, EngineError, EnvironmentFault
from cacherl.trajectory import Trajectory
from fakes import CountingScorer, FakeEnv, FakePolicy, task, word_chat


@pytest.fixture(scope="module")
def words() -> Chat:
    return word_chat()


class Envs:
    """Makes environments and keeps them; `failing(seed)` says how many attempts of a member fail."""

    def __init__(self, failing: Callable[[int], int] = lambda seed: 0, error: type[Exception] = RuntimeError) -> None:
        self.made: list[FakeEnv] = []
        self._failing = failing
        self._error = error
        self._attempts: dict[int, int] = {}

    def __call__(self) -> FakeEnv:
        envs = self

        class Env(FakeEnv):
            async def reset(self, task: Any, *, rollout_seed: int) -> None:
                await super().reset(task, rollout_seed=rollout_seed)
                attempt = envs._attempts.get(rollout_seed, 0)
                envs._attempts[rollout_seed] = attempt + 1
                if attempt < envs._failing(rollout_seed):
                    raise envs._error(f"attempt {attempt} of {rollout_seed}")

        self.made.append(Env())
        return self.made[-1]

    @property
    def seeds(self) -> list[int]:
        return [int(env.events[0].split()[1]) for env in self.made]


def rollout(
    words: Chat,
    envs: Callable[[], Any],
    max_retries: int = 2,
    scorer: CountingScorer | None = None,
    policy: FakePolicy | None = None,
) -> Rollout:
    player = PolicyPlayer(
        policy=policy or FakePolicy(words.completion_ids, ["done"]),
        chat=words,
        sampling=Sampling(temperature=1.0, max_new_tokens=8),
        limits=EpisodeLimits(max_turns=4, max_length=64, timeout_s=60.0),
    )
    return Rollout(player=player, make_env=envs, scorer=scorer or CountingScorer(), max_retries=max_retries)


def request(size: int = 4, seed: int = 11, group_id: str = "run-1") -> GroupRequest:
    return GroupRequest(group_id=group_id, task=task(), size=size, seed=seed)


def seeds_of(size: int, seed: int = 11) -> list[int]:
    return [derive_seed(seed, index) for index in range(size)]


async def test_all_members_of_a_group(words: Chat) -> None:
    envs = Envs()
    played = await rollout(words, envs).group(request())
    assert played.group is not None
    assert (played.group.group_id, played.group.task_id, played.group.num_failed) == ("run-1", "fake/train/1/0", 0)
    assert [member.trajectory_id for member in played.group.trajectories] == [f"run-1:{index}" for index in range(4)]
    assert [member.rollout_seed for member in played.group.trajectories] == seeds_of(4)
    assert played.errors == ()
    assert [env.events[-1] for env in envs.made] == ["close"] * 4


async def test_siblings_have_different_seeds_and_the_request_fixes_them(words: Chat) -> None:
    seeds = []
    for sent in (request(seed=11), request(seed=11, group_id="run-2"), request(seed=12)):
        envs = Envs()
        await rollout(words, envs).group(sent)
        seeds.append(envs.seeds)
    assert len(set(seeds[0])) == 4
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])


@pytest.mark.parametrize("blocking", [False, True])
async def test_the_finished_members_are_scored_together_with_the_scales_of_the_request(words: Chat, blocking: bool) -> None:
    scorer = CountingScorer(blocking=blocking)
    sent = replace(request(), scales={"step": -0.5})
    unlucky = seeds_of(4)[1]
    played = await rollout(words, Envs(lambda seed: 9 if seed == unlucky else 0), scorer=scorer).group(sent)
    assert played.group is not None
    assert [member.reward_parts for member in played.group.trajectories] == [{"final": 1.0, "step": -0.5, "calls": 0.0}] * 3
    (thread,) = scorer.threads  # one that waits does so off the event loop
    assert thread.startswith("reward") == blocking


async def test_a_reward_that_fails_costs_its_group_and_says_why(words: Chat) -> None:
    played = await rollout(words, FakeEnv, scorer=CountingScorer(error=ZeroDivisionError("by zero"))).group(request(2))
    assert played.group is None
    assert played.errors == ("the reward of task fake/train/1/0 failed: ZeroDivisionError('by zero')",)


async def test_a_reward_that_cannot_work_with_the_environment_is_a_setting_to_change(words: Chat) -> None:
    with pytest.raises(ConfigError, match="no potentials"):
        await rollout(words, FakeEnv, scorer=CountingScorer(error=ConfigError("no potentials"))).group(request(2))


async def test_a_failed_member_is_tried_again_with_the_same_seed(words: Chat) -> None:
    unlucky = seeds_of(4)[2]
    envs = Envs(lambda seed: 2 if seed == unlucky else 0)
    played = await rollout(words, envs, max_retries=2).group(request())
    assert played.group is not None
    assert (len(played.group), played.group.num_failed, played.errors) == (4, 0, ())
    assert envs.seeds.count(unlucky) == 3
    assert len(envs.made) == 6
    assert all(env.events[-1] == "close" for env in envs.made)


async def test_a_member_that_fails_every_attempt_is_left_out(words: Chat) -> None:
    unlucky = seeds_of(4)[1]
    envs = Envs(lambda seed: 9 if seed == unlucky else 0)
    played = await rollout(words, envs, max_retries=2).group(request())
    assert played.group is not None
    assert [member.trajectory_id for member in played.group.trajectories] == ["run-1:0", "run-1:2", "run-1:3"]
    assert played.group.num_failed == 1
    last = f"environment 'fake' failed on task fake/train/1/0: RuntimeError('attempt 2 of {unlucky}')"
    assert played.errors == (last,)
    assert envs.seeds.count(unlucky) == 3


@pytest.mark.parametrize(
    ("size", "failures", "left", "errors"), [(4, 2, 2, 2), (4, 3, None, 3), (4, 4, None, 4), (1, 0, 1, 0), (1, 1, None, 1)]
)
async def test_a_group_without_a_baseline_is_none(words: Chat, size: int, failures: int, left: int | None, errors: int) -> None:
    unlucky = seeds_of(size)[:failures]
    played = await rollout(words, Envs(lambda seed: 9 if seed in unlucky else 0), max_retries=0).group(request(size))
    assert (len(played.group) if played.group else None, len(played.errors)) == (left, errors)


async def test_the_order_of_members_is_not_the_order_in_which_they_finish(words: Chat) -> None:
    seeds = seeds_of(3)

    class Slow(FakeEnv):
        async def reset(self, task: Any, *, rollout_seed: int) -> None:
            await asyncio.sleep(0.03 * (3 - seeds.index(rollout_seed)))

    played = await rollout(words, Slow).group(request(3))
    assert played.group is not None
    assert [member.rollout_seed for member in played.group.trajectories] == seeds


async def test_single_episodes_keep_their_order_and_their_errors(words: Chat) -> None:
    tasks = [task(number) for number in range(3)]
    seeds = [derive_seed(3, each.task_id) for each in tasks]
    envs = Envs(lambda seed: 9 if seed == seeds[1] else 0)
    played = await rollout(words, envs, max_retries=1).each(tasks, label="eval", seed=3)
    assert [type(result) for result in played] == [Trajectory, EnvironmentFault, Trajectory]
    first, _, last = played
    assert isinstance(first, Trajectory)
    assert isinstance(last, Trajectory)
    assert (first.trajectory_id, last.trajectory_id) == ("eval:fake/train/1/0", "eval:fake/train/1/2")
    assert (first.rollout_seed, last.rollout_seed) == (seeds[0], seeds[2])


async def test_an_environment_that_cannot_be_made_is_a_fault_of_its_member(words: Chat) -> None:
    attempts = []

    def make_env() -> FakeEnv:
        attempts.append(1)
        if len(attempts) <= 2:
            raise OSError("no sandbox left")
        return FakeEnv()

    played = await rollout(words, make_env, max_retries=1).group(request(3))
    assert played.group is not None
    assert (len(played.group), len(attempts)) == (2, 4)
    assert played.errors == ("no environment could be made for task fake/train/1/0: OSError('no sandbox left')",)


async def test_an_environment_that_does_not_close_costs_no_trajectory(
    words: Chat, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sticky(FakeEnv):
        async def close(self) -> None:
            raise OSError("still in use")

    class Stuck(FakeEnv):
        async def close(self) -> None:
            await asyncio.Event().wait()

    with caplog.at_level(logging.WARNING):
        played = await rollout(words, Sticky).group(request(2))
    assert played.group is not None
    assert len(played.group) == 2
    assert "did not close: OSError('still in use')" in caplog.text
    monkeypatch.setattr("actors.rollout._CLOSE_S", 0.05)
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(close_env(Stuck()), 5)
    assert "did not close: TimeoutError()" in caplog.text


async def test_errors_of_the_engine_are_retried_too(words: Chat) -> None:
    policy = FakePolicy(words.completion_ids, ["done"], failures=[EngineError("busy"), RuntimeError("busy")])
    played = await rollout(words, FakeEnv, max_retries=1, policy=policy).group(request(2))
    assert played.group is not None
    assert (len(played.group), played.errors) == (2, ())


def test_a_derived_seed_depends_on_every_part_and_on_nothing_else() -> None:
    assert derive_seed("a", 1) == 1865973658  # the same in every process and on every machine
    assert len({derive_seed(*parts) for parts in (("a", 1), ("a", 2), ("b", 1), ("a", "1"), ("a1",), (1, "a"))}) == 6
    assert all(0 <= derive_seed(number) < 2**31 for number in range(1000))
