"""Demonstrations: episodes that an agent without a model plays, as trajectories of the same form as the policy's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.chat import Chat
from actors.episode import Episode, EpisodeLimits, Member
from actors.policy import Sampling, ScriptedPolicy
from actors.rollout import close_env, derive_seed
from cacherl.trajectory import Message, Trajectory
from envs.agents import Agent
from envs.base import EnvStep, Task, TaskSource, ToolEnv, ToolSpec


class _RememberingEnv:
    """An environment that keeps the conversation for an agent to read."""

    def __init__(self, env: ToolEnv) -> None:
        self._env = env
        self.history: list[Message] = []

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._env.tools()

    async def reset(self, task: Task, *, rollout_seed: int) -> None:
        self.history.clear()
        await self._env.reset(task, rollout_seed=rollout_seed)

    async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
        step = await self._env.step(text, finish_reason=finish_reason)
        self.history += [Message(role="assistant", content=text), *step.messages]
        return step

    def snapshot(self) -> dict[str, Any]:
        return self._env.snapshot()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._env.restore(snapshot)

    def verdict(self) -> float:
        return self._env.verdict()

    async def close(self) -> None:
        await self._env.close()


async def demonstrate(
    tasks: Sequence[Task],
    agent_of: Callable[[int], Agent],
    *,
    source: TaskSource,
    chat: Chat,
    limits: EpisodeLimits,
    sampling: Sampling,
) -> list[Trajectory]:
    """Let agent number i play task number i, for every task; without rewards, which imitation does not need.

    Raises:
        EnvironmentFault: an environment failed.
    """
    played = []
    for index, task in enumerate(tasks):
        env = _RememberingEnv(source.make_env())
        policy = ScriptedPolicy(_acting(agent_of(index), task, env.history), chat.completion_ids, source="demonstration")
        episode = Episode(policy=policy, env=env, chat=chat, sampling=sampling, limits=limits)
        name = f"demonstration-{index}"
        member = Member(task=task, trajectory_id=name, rollout_seed=derive_seed(name, task.task_id))
        try:
            played.append(await episode.play(member))
            await asyncio.sleep(0)  # nothing in it had to wait: let the rest of the process have its turn
        finally:
            await close_env(env)
    return played


def _acting(agent: Agent, task: Task, history: Sequence[Message]) -> Callable[[], str]:
    return lambda: agent.act(task, history)
