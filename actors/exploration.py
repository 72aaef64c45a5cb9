"""Exploration: which members of a group an explorer plays in the policy's place, and who that is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from actors.chat import Chat
from actors.episode import EpisodeLimits, Member
from actors.players import AgentPlayer, Player, PolicyPlayer
from actors.policy import Policy, Sampling
from cacherl.exploration_settings import ExplorationSection, Explorer
from cacherl.trajectory import Source
from envs.agents import Agent, RandomAgent, TeacherAgent
from envs.base import TaskSource


def explored_members(seed: int, size: int, rate: float) -> frozenset[int]:
    """Indices of the members that the explorer plays: each with chance `rate`, but of all of them one is left out.

    Args:
        seed: of the group; fixes the draw.
        size: members of the group.
        rate: in [0, 1).
    """
    rng = random.Random(f"exploration {seed}")
    chosen = {index for index in range(size) if rng.random() < rate}
    if len(chosen) == size:
        chosen.remove(rng.randrange(size))
    return frozenset(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explorers:
    """Makes the explorer of each member that has one; its rollout seed fixes what an agent does."""

    settings: ExplorationSection
    policy: Policy
    source: TaskSource
    chat: Chat
    sampling: Sampling
    limits: EpisodeLimits

    def __call__(self, member: Member) -> Player:
        if self.settings.explorer == "policy":
            hotter = replace(self.sampling, temperature=self.settings.temperature)
            return PolicyPlayer(policy=self.policy, chat=self.chat, sampling=hotter, limits=self.limits)
        agent, source = _AGENTS[self.settings.explorer](self.source, self.settings, member.rollout_seed)
        return AgentPlayer(agent=agent, source=source, chat=self.chat, sampling=self.sampling, limits=self.limits)


def _random(source: TaskSource, settings: ExplorationSection, seed: int) -> tuple[Agent, Source]:
    return RandomAgent(source, seed=seed), "random"


def _teacher(source: TaskSource, settings: ExplorationSection, seed: int) -> tuple[Agent, Source]:
    return TeacherAgent(source, sloppiness=settings.sloppiness, seed=seed), "demonstration"


_AGENTS: Mapping[Explorer, Callable[[TaskSource, ExplorationSection, int], tuple[Agent, Source]]] = {
    "random": _random,
    "teacher": _teacher,
}
