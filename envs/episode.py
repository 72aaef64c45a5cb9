"""`play`: an agent without a model through one episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cacherl.trajectory import Message
from envs.agents import Agent
from envs.base import EnvStep, Task, ToolEnv


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


def _history(turns: Sequence[PlayedTurn]) -> list[Message]:
    return [message for turn in turns for message in (Message(role="assistant", content=turn.text), *turn.step.messages)]
