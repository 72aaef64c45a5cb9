"""Policies and environments written by hand for tests of the rollout code, and trajectories to check it against."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from actors.chat import Chat
from actors.policy import Completion, FinishReason, Sampling
from actors.report import EpisodeSummary, GroupReport
from cacherl.trajectory import NO_VERSION, Message, Source, Status, ToolCall, Trajectory, TrajectoryGroup, Turn
from deploy.tiny_model import build_tokenizer
from envs.base import EnvStep, Task, ToolSpec


def two_turns(**changes: Any) -> Trajectory:
    """Ten tokens: a prompt of three, a completion of three, an observation of two, a completion of two."""
    sampled = [3, 4, 5, 8, 9]
    mask, logprobs, versions = np.zeros(10, np.bool_), np.zeros(10, np.float32), np.full(10, NO_VERSION, np.int32)
    mask[sampled] = True
    logprobs[sampled] = [-0.5, -1.0, -1.5, -2.0, 0.0]
    versions[sampled] = [4, 4, 5, 5, 6]
    fields: dict[str, Any] = {
        "trajectory_id": "t",
        "task_id": "task",
        "family": "f",
        "level": 2,
        "split": "train",
        "token_ids": np.arange(10, dtype=np.int32),
        "loss_mask": mask,
        "rollout_logprobs": logprobs,
        "policy_versions": versions,
        "temperature": 1.0,
        "turns": (
            Turn(completion=(3, 6), observation=(6, 8), text="a", rewards={"tool_use": 0.05, "step_penalty": -0.02}),
            Turn(completion=(8, 10), observation=(10, 10), text="b", rewards={"step_penalty": -0.02}),
        ),
        "rewards": {"final": 1.0},
        "outcome": 1.0,
        "status": Status(kind="terminated"),
        "task_seed": 1,
        "rollout_seed": 2,
    }
    return Trajectory(**{**fields, **changes})


def group_of(*members: Trajectory, **changes: Any) -> TrajectoryGroup:
    """A group of the task that `two_turns` belongs to."""
    fields: dict[str, Any] = {"group_id": "g", "task_id": "task", "trajectories": members}
    return TrajectoryGroup(**{**fields, **changes})


def group_report(group_id: str, *outcomes: float, returns: tuple[float, ...] | None = None, explored: int = 0) -> GroupReport:
    """A finished group of research episodes with these outcomes, and these total rewards, by default the same; the last
    `explored` ones were played by an explorer."""
    episodes = tuple(
        EpisodeSummary(
            family="research",
            level=1,
            outcome=outcome,
            total_reward=total,
            reward_parts={},
            turns=1,
            sampled_tokens=1,
            tool_calls=0,
            tool_errors=0,
            end="terminated",
            explored=index >= len(outcomes) - explored,
        )
        for index, (outcome, total) in enumerate(zip(outcomes, returns or outcomes, strict=True))
    )
    return GroupReport(group_id=group_id, actor="actor-0", push="ok", episodes=episodes)


def task(number: int = 0, prompt: str = "Who?") -> Task:
    """A task without a world."""
    messages = (Message(role="user", content=prompt),)
    return Task(task_id=f"fake/train/1/{number}", family="fake", split="train", level=1, seed=number, messages=messages)


def word_chat() -> Chat:
    """A chat of few words: 'Who?' is 2 tokens, its prompt 5, and the observation 'seen' 4, generation prompts included."""
    return Chat(build_tokenizer(["Who", "?", "look", "done", "seen", " ", "a"], (), 512))


@dataclass
class FakePolicy:
    """Says the given texts in order, the last one ever after; token n of the episode's completions has version n.

    Attributes:
        encode: text -> token ids, end of turn included.
        finish: finish reason of each turn, 'stop' beyond them.
        failures: errors to raise instead of the first completions.
        delay_s: seconds that every completion takes.
        calls: (prefix, sampling, seed) of every call so far.
    """

    encode: Callable[[str], list[int]]
    texts: Sequence[str]
    finish: Sequence[FinishReason] = ()
    failures: list[Exception] = field(default_factory=list)
    delay_s: float = 0.0
    source: Source = "policy"
    calls: list[tuple[list[int], Sampling, int]] = field(default_factory=list)
    _sampled: int = 0

    async def complete(self, prefix: Sequence[int], sampling: Sampling, *, seed: int) -> Completion:
        turn = len(self.calls)
        self.calls.append((list(prefix), sampling, seed))
        await asyncio.sleep(self.delay_s)
        if self.failures:
            raise self.failures.pop(0)
        ids = self.encode(self.texts[min(turn, len(self.texts) - 1)])[: sampling.max_new_tokens]
        first, self._sampled = self._sampled, self._sampled + len(ids)
        return Completion(
            token_ids=np.array(ids, np.int32),
            logprobs=-np.arange(1, len(ids) + 1, dtype=np.float32) / 8,
            versions=np.arange(first, self._sampled, dtype=np.int32),
            finish_reason=self.finish[turn] if turn < len(self.finish) else "stop",
        )


@dataclass
class FakeEnv:
    """Answers every text but 'done' with one call of tool 'look', whose result is `result`; 'done' ends with `outcome`.

    Attributes:
        error: kind of failure of every call; None: they succeed.
        delay_s: seconds that every step takes.
        failures: errors to raise instead of the first steps.
        potentials: of the states before the first steps.
        events: what happened to it, in order.
    """

    result: str = "seen"
    outcome: float = 1.0
    error: str | None = None
    delay_s: float = 0.0
    failures: list[Exception] = field(default_factory=list)
    potentials: list[float] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def tools(self) -> tuple[ToolSpec, ...]:
        return ()

    async def reset(self, task: Task, *, rollout_seed: int) -> None:
        self.events.append(f"reset {rollout_seed}")

    async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
        self.events.append(f"step {text}")
        await asyncio.sleep(self.delay_s)
        if self.failures:
            raise self.failures.pop(0)
        potential = self.potentials.pop(0) if self.potentials else None
        if text == "done":
            outcome = self.outcome
            return EnvStep(messages=(), calls=(), terminated=True, outcome=outcome, state_hash="end", potential=potential)
        call = ToolCall(name="look", arguments={}, ok=self.error is None, error=self.error, seconds=0.5)
        message = Message(role="tool", content=self.result, name="look")
        return EnvStep(
            messages=(message,),
            calls=(call,),
            terminated=False,
            outcome=None,
            state_hash="begin",
            seconds=0.5,
            potential=potential,
        )

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        del snapshot

    def verdict(self) -> float:
        return 0.25

    async def close(self) -> None:
        self.events.append("close")


@dataclass
class CountingScorer:
    """A turn is worth `scales['step']`, by default -0.1, and 1 for each successful call; a trajectory its outcome.

    Attributes:
        blocking: as of a reward that waits.
        error: to raise instead.
        threads: names of the threads that it was called on.
    """

    blocking: bool = False
    error: Exception | None = None
    threads: list[str] = field(default_factory=list)

    def score(self, members: Sequence[Trajectory], scales: Mapping[str, float]) -> tuple[Trajectory, ...]:
        self.threads.append(threading.current_thread().name)
        if self.error:
            raise self.error
        return tuple(self._score(member, scales) for member in members)

    def _score(self, member: Trajectory, scales: Mapping[str, float]) -> Trajectory:
        turns = tuple(
            replace(turn, rewards={"step": scales.get("step", -0.1), "calls": float(sum(call.ok for call in turn.calls))})
            for turn in member.turns
        )
        return replace(member, turns=turns, rewards={"final": member.outcome})
