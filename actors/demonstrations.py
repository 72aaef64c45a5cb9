"""Demonstrations: episodes that an agent without a model plays, for the policy to imitate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actors.chat import Chat
from actors.episode import EpisodeLimits, Member
from actors.players import AgentPlayer
from actors.policy import Sampling
from actors.rollout import close_env, derive_seed
from cacherl.trajectory import Trajectory
from envs.agents import Agent
from envs.base import Task, TaskSource


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
        AgentError, EnvironmentFault: an agent or an environment failed.
    """
    played = []
    for index, task in enumerate(tasks):
        player = AgentPlayer(agent=agent_of(index), source="demonstration", chat=chat, sampling=sampling, limits=limits)
        name = f"demonstration-{index}"
        member = Member(task=task, trajectory_id=name, rollout_seed=derive_seed(name, task.task_id))
        env = source.make_env()
        try:
            played.append(await player.play(member, env))
            await asyncio.sleep(0)  # nothing in it had to wait: let the rest of the process have its turn
        finally:
            await close_env(env)
    return played
