"""Players: whoever acts in an episode, the policy or an agent without a model, played in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from actors.chat import Chat
from actors.episode import Episode, EpisodeLimits, Member
from actors.policy import Policy, Sampling, ScriptedPolicy
from cacherl.trajectory import Message, Source, Trajectory
from envs.agents import Agent
from envs.base import EnvStep, Task, ToolEnv, ToolSpec


class Player(Protocol):
    """Plays episodes."""

    async def play(self, member: Member, env: ToolEnv) -> Trajectory:
        """Run one episode in `env` to its end, without rewards; the caller closes `env`.

        Raises:
            As `Episode.play`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlayer:
    """Lets a policy act; one serves any number of episodes at once."""

    policy: Policy
    chat: Chat
    sampling: Sampling
    limits: EpisodeLimits

    async def play(self, member: Member, env: ToolEnv) -> Trajectory:
        episode = Episode(policy=self.policy, env=env, chat=self.chat, sampling=self.sampling, limits=self.limits)
        return await episode.play(member)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlayer:
    """Lets an agent act that reads the conversation and writes text, in trajectories of the same form as the policy's own.

    Attributes:
        source: recorded in the trajectories.
        sampling: its `max_new_tokens` cuts what the agent writes, its `temperature` is that at which the learner will score it.
    """

    agent: Agent
    source: Source
    chat: Chat
    sampling: Sampling
    limits: EpisodeLimits

    async def play(self, member: Member, env: ToolEnv) -> Trajectory:
        remembering = _RememberingEnv(env)

        def act() -> str:
            return self.agent.act(member.task, remembering.history)

        who = f"{type(self.agent).__name__} of {member.trajectory_id}"
        policy = ScriptedPolicy(act, self.chat.completion_ids, who=who, source=self.source)
        player = PolicyPlayer(policy=policy, chat=self.chat, sampling=self.sampling, limits=self.limits)
        return await player.play(member, remembering)


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
