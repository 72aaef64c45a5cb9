"""One episode: policy and environment take turns on one growing token sequence until someone ends it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from actors.chat import Chat
from actors.policy import Completion, Policy, Sampling
from cacherl.errors import CacheRLError, EngineError, EnvironmentFault
from cacherl.trajectory import NO_VERSION, Status, ToolCall, Trajectory, Turn
from envs.base import EnvStep, Task, ToolEnv

TERMINATED = Status(kind="terminated")


class Scorer(Protocol):
    """Rewards of an episode; `rewards.composer.Composer` is one."""

    def turn(self, calls: Sequence[ToolCall]) -> Mapping[str, float]:
        """Weighted components of one turn."""

    def trajectory(self, outcome: float) -> Mapping[str, float]:
        """Weighted components of the whole episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Where an episode is cut off.

    Attributes:
        max_turns: completions.
        max_length: tokens, prompt included.
        timeout_s: seconds spent in the engine and in the tools together; time that the event loop lost is not counted.
    """

    max_turns: int
    max_length: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Which sibling of which task an episode is, and its seeds."""

    task: Task
    trajectory_id: str
    rollout_seed: int


@dataclass(slots=True)
class _Tokens:
    """The sequence under construction; the four lists stay aligned."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def given(self, ids: Sequence[int]) -> tuple[int, int]:
        """Append tokens that nobody sampled; returns their span."""
        start = len(self.ids)
        self.ids.extend(ids)
        self.mask.extend([False] * len(ids))
        self.logprobs.extend([0.0] * len(ids))
        self.versions.extend([NO_VERSION] * len(ids))
        return start, len(self.ids)

    def sampled(self, completion: Completion) -> tuple[int, int]:
        """Append a completion; returns its span."""
        start = len(self.ids)
        self.ids.extend(completion.token_ids.tolist())
        self.mask.extend([True] * len(completion.token_ids))
        self.logprobs.extend(completion.logprobs.tolist())
        self.versions.extend(completion.versions.tolist())
        return start, len(self.ids)


class Episode:
    """Plays one member to its end.

    Raises (from `play`):
        EngineError, EnvironmentFault: infrastructure failed; the member may be tried again.
    """

    def __init__(
        self, *, policy: Policy, env: ToolEnv, chat: Chat, scorer: Scorer, sampling: Sampling, limits: EpisodeLimits
    ) -> None:
        self._policy = policy
        self._env = env
        self._chat = chat
        self._scorer = scorer
        self._sampling = sampling
        self._limits = limits

    async def play(self, member: Member) -> Trajectory:
        """Run the episode; whatever the policy or the tools do ends in a recorded status, not in an exception."""
        started, clock = time.time(), time.monotonic()
        tokens, turns = _Tokens(), list[Turn]()
        tokens.given(self._chat.prompt_ids(member.task.messages))
        try:
            await self._env.reset(member.task, rollout_seed=member.rollout_seed)
            status, outcome = await self._turns(member, tokens, turns)
        except CacheRLError:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"environment {member.task.family!r} failed on task {member.task.task_id}: {error!r}"
            ) from error
        return Trajectory(
            trajectory_id=member.trajectory_id,
            task_id=member.task.task_id,
            family=member.task.family,
            level=member.task.level,
            split=member.task.split,
            token_ids=np.array(tokens.ids, dtype=np.int32),
            loss_mask=np.array(tokens.mask, dtype=np.bool_),
            rollout_logprobs=np.array(tokens.logprobs, dtype=np.float32),
            policy_versions=np.array(tokens.versions, dtype=np.int32),
            temperature=self._sampling.temperature,
            turns=tuple(turns),
            rewards=dict(self._scorer.trajectory(outcome)),
            outcome=outcome,
            status=status,
            task_seed=member.task.seed,
            rollout_seed=member.rollout_seed,
            source=self._policy.source,
            started_at=started,
            duration_s=time.monotonic() - clock,
        )

    async def _turns(self, member: Member, tokens: _Tokens, turns: list[Turn]) -> tuple[Status, float]:
        spent = 0.0
        while True:
            room = self._limits.max_length - len(tokens.ids)
            if reason := self._exhausted(len(turns), room, spent):
                return Status(kind="truncated", reason=reason), self._env.verdict()
            completion, seconds = await self._complete(member, tokens, room, turn=len(turns))
            span = tokens.sampled(completion)
            text = self._chat.text(tokens.ids[slice(*span)])
            if completion.finish_reason != "stop":
                turns.append(self._turn(span, (span[1], span[1]), text, completion, None, seconds))
                return Status(kind="truncated", reason="tokens"), self._env.verdict()
            step = await self._env.step(text, finish_reason=completion.finish_reason)
            observed = (span[1], span[1]) if step.terminated else tokens.given(self._chat.observation_ids(step.messages))
            turns.append(self._turn(span, observed, text, completion, step, seconds))
            spent += seconds + step.seconds
            if step.terminated:
                assert step.outcome is not None
                return TERMINATED, step.outcome

    def _exhausted(self, num_turns: int, room: int, spent: float) -> str | None:
        if num_turns >= self._limits.max_turns:
            return "turns"
        if room < 1:
            return "context"
        return "timeout" if spent > self._limits.timeout_s else None

    async def _complete(self, member: Member, tokens: _Tokens, room: int, *, turn: int) -> tuple[Completion, float]:
        begin = time.monotonic()
        sampling = Sampling(
            temperature=self._sampling.temperature,
            max_new_tokens=min(self._sampling.max_new_tokens, room),
            greedy=self._sampling.greedy,
        )
        completion = await self._policy.complete(tokens.ids, sampling, seed=(member.rollout_seed + turn) % 2**31)
        if completion.finish_reason == "abort" or not len(completion.token_ids):
            raise EngineError(f"the engine aborted turn {turn} of {member.trajectory_id}")
        return completion, time.monotonic() - begin

    def _turn(
        self,
        span: tuple[int, int],
        observed: tuple[int, int],
        text: str,
        completion: Completion,
        step: EnvStep | None,
        seconds: float,
    ) -> Turn:
        calls = step.calls if step else ()
        return Turn(
            completion=span,
            observation=observed,
            text=text,
            calls=calls,
            messages=step.messages if step else (),
            rewards=dict(self._scorer.turn(calls)),
            finish_reason=completion.finish_reason,
            state_hash=step.state_hash if step else "",
            generate_s=seconds,
            tool_s=step.seconds if step else 0.0,
        )
