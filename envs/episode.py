"""`play`: one agent through one episode, without a model; `demonstrations`: many by the sloppy teacher."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cacherl.trajectory import Message
from envs.agents import Agent, TeacherAgent
from envs.base import TRAIN, EnvStep, Task, TaskSource, ToolEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """What the agent said, and what followed."""

    text: str
    step: EnvStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A finished episode as text.

    Attributes:
        outcome: the verdict; of an episode that ran out of turns, that of the moment.
        truncated: it ran out of turns.
    """

    task: Task
    turns: tuple[PlayedTurn, ...]
    outcome: float
    truncated: bool

    @property
    def messages(self) -> tuple[Message, ...]:
        """Prompt, assistant turns and tool results in order."""
        return (*self.task.messages, *_history(self.turns))


async def play(env: ToolEnv, task: Task, agent: Agent, *, rollout_seed: int, max_turns: int) -> Episode:
    """Run one episode of at most `max_turns` turns."""
    await env.reset(task, rollout_seed=rollout_seed)
    turns: list[PlayedTurn] = []
    history: list[Message] = []
    while len(turns) < max_turns:
        text = agent.act(task, history)
        step = await env.step(text)
        turns.append(PlayedTurn(text=text, step=step))
        history += (Message(role="assistant", content=text), *step.messages)
        if step.outcome is not None:
            return Episode(task=task, turns=tuple(turns), outcome=step.outcome, truncated=False)
    return Episode(task=task, turns=tuple(turns), outcome=env.verdict(), truncated=True)


def demonstrations(
    source: TaskSource, *, count: int, levels: Sequence[int], sloppiness: float, seed: int, max_turns: int
) -> list[Episode]:
    """`count` episodes of the teacher on training tasks, levels in turn; the same for the same arguments.

    Runs its own event loop, so it cannot be called inside one.
    """

    async def run() -> list[Episode]:
        rng = random.Random(f"demonstrations {seed}")
        env = source.make_env()
        episodes = []
        for index in range(count):
            task = source.sample(rng, split=TRAIN, level=levels[index % len(levels)])
            teacher = TeacherAgent(source, sloppiness=sloppiness, seed=rng.randrange(2**31))
            episodes.append(await play(env, task, teacher, rollout_seed=rng.randrange(2**31), max_turns=max_turns))
        await env.close()
        return episodes

    return asyncio.run(run())


def _history(turns: Sequence[PlayedTurn]) -> list[Message]:
    return [message for turn in turns for message in (Message(role="assistant", content=turn.text), *turn.step.messages)]
