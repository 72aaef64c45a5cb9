"""`Subject`: the environment under examination, its tasks, and ways to play them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cacherl.environment_settings import EnvSection
from cacherl.trajectory import Message
from envs.agents import Agent
from envs.base import EnvStep, Task, TaskSource, ToolEnv
from envs.episode import play

#: Turns after which an agent has failed.
MAX_TURNS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A source and the tasks that were drawn for its examination.

    Attributes:
        tasks: (split, level) -> as many tasks of it, for each pair that exists.
        section: what the source was loaded from; None: it has no name by which another process could load it.
    """

    source: TaskSource
    tasks: Mapping[tuple[str, int], tuple[Task, ...]]
    section: EnvSection | None = None

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """The tasks of every split and level."""
        return tuple(task for tasks in self.tasks.values() for task in tasks)

    @asynccontextmanager
    async def env(self, task: Task, *, rollout_seed: int) -> AsyncIterator[ToolEnv]:
        """An environment in which `task` has begun."""
        env = self.source.make_env()
        try:
            await env.reset(task, rollout_seed=rollout_seed)
            yield env
        finally:
            await env.close()

    async def outcomes(self, tasks: tuple[Task, ...], agent_of: Callable[[Task], Agent]) -> list[float]:
        """The verdict on one episode of each task, all in the same environment."""
        env = self.source.make_env()
        try:
            played = [
                await play(env, task, agent_of(task), rollout_seed=index, max_turns=MAX_TURNS)
                for index, task in enumerate(tasks)
            ]
        finally:
            await env.close()
        return [episode.outcome for episode in played]

    async def steps(self, task: Task, agent: Agent, *, rollout_seed: int, pause: bool = False) -> list[EnvStep]:
        """One episode's steps. With `pause`, others may run before each of its turns."""
        history: list[Message] = []
        steps: list[EnvStep] = []
        async with self.env(task, rollout_seed=rollout_seed) as env:
            while len(steps) < MAX_TURNS and not (steps and steps[-1].terminated):
                if pause:
                    await asyncio.sleep(0)
                text = agent.act(task, history)
                steps.append(await env.step(text))
                history += [Message(role="assistant", content=text), *steps[-1].messages]
        return steps
