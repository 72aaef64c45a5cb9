"""One episode: policy and environment take turns on one growing token sequence until someone ends it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from actors.chat import Chat
from actors.policy import Completion, Policy, Sampling
from actors.stopwatch import Stopwatch
from cacherl.errors import ConfigError, DeadlineExceeded, EngineError, EnvironmentFault, boundary
from cacherl.trajectory import NO_VERSION, Message, Status, Trajectory, Turn
from envs.base import EnvStep, Task, ToolEnv, require_share

TERMINATED = Status(kind="terminated")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Where an episode is cut off, and the reason that is recorded then.

    Attributes:
        max_turns: completions ('turns').
        max_length: tokens, prompt included ('context'); a tool result that does not fit is cut.
        timeout_s: seconds spent in the engine and in the tools together ('timeout'); also ends a call that hangs. Time that the
            event loop lost is not counted.
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


@dataclass(slots=True)
class _Run:
    """An episode in progress."""

    member: Member
    watch: Stopwatch
    tokens: _Tokens = field(default_factory=_Tokens)
    turns: list[Turn] = field(default_factory=list)

    @property
    def position(self) -> str:
        return f"turn {len(self.turns)} of {self.member.trajectory_id}"


class Episode:
    """Plays one member to its end."""

    def __init__(self, *, policy: Policy, env: ToolEnv, chat: Chat, sampling: Sampling, limits: EpisodeLimits) -> None:
        self._policy = policy
        self._env = env
        self._chat = chat
        self._sampling = sampling
        self._limits = limits

    async def play(self, member: Member) -> Trajectory:
        """Run the episode, without rewards; whatever the policy or the tools do ends in a recorded status, not in an exception.

        Raises:
            EngineError, AgentError, EnvironmentFault: whoever acts, or infrastructure, failed; the member may be tried again.
            DeadlineExceeded: the limit passed before there was even one completion.
            ConfigError: the task's prompt leaves no room for a completion.
        """
        started, clock = time.time(), time.monotonic()
        run = _Run(member, Stopwatch(self._limits.timeout_s))
        run.tokens.given(self._prompt(member.task))
        with _environment_of(member.task):
            reset = self._env.reset(member.task, rollout_seed=member.rollout_seed)
            await run.watch.measure(reset, f"the environment to reset for {member.trajectory_id}")
        status, outcome = await self._turns(run)
        return Trajectory(
            trajectory_id=member.trajectory_id,
            task_id=member.task.task_id,
            family=member.task.family,
            level=member.task.level,
            split=member.task.split,
            token_ids=np.array(run.tokens.ids, dtype=np.int32),
            loss_mask=np.array(run.tokens.mask, dtype=np.bool_),
            rollout_logprobs=np.array(run.tokens.logprobs, dtype=np.float32),
            policy_versions=np.array(run.tokens.versions, dtype=np.int32),
            temperature=self._sampling.temperature,
            turns=tuple(run.turns),
            rewards={},
            outcome=outcome,
            status=status,
            task_seed=member.task.seed,
            rollout_seed=member.rollout_seed,
            source=self._policy.source,
            started_at=started,
            duration_s=time.monotonic() - clock,
            prompt=member.task.messages,
        )

    def _prompt(self, task: Task) -> list[int]:
        ids = self._chat.prompt_ids(task.messages)
        if len(ids) >= self._limits.max_length:
            raise ConfigError(
                f"model.max_length: the prompt of task {task.task_id} has {len(ids)} tokens, which leaves no room for a "
                f"completion within {self._limits.max_length}; raise it"
            )
        return ids

    async def _turns(self, run: _Run) -> tuple[Status, float]:
        end: float | str | None = None
        while end is None:
            end = self._exhausted(run) or await self._turn(run)
        if not isinstance(end, str):
            return TERMINATED, end
        with _environment_of(run.member.task):
            return Status(kind="truncated", reason=end), require_share(self._env.verdict(), "the verdict")

    def _exhausted(self, run: _Run) -> str | None:
        if len(run.turns) >= self._limits.max_turns:
            return "turns"
        if self._room(run) < 1:
            return "context"
        return "timeout" if run.watch.expired else None

    def _room(self, run: _Run) -> int:
        return self._limits.max_length - len(run.tokens.ids)

    async def _turn(self, run: _Run) -> float | str | None:
        """Play one turn; returns the outcome if it ended the episode, the reason if a limit did, else None."""
        room = self._room(run)
        try:
            completion, generate_s = await self._complete(run, room)
        except DeadlineExceeded:
            if not run.turns:
                raise
            return "timeout"
        span = run.tokens.sampled(completion)
        text = self._chat.text(run.tokens.ids[slice(*span)])
        if completion.finish_reason != "stop":
            self._record(run, span, text, completion, generate_s)
            return "tokens" if len(completion.token_ids) < room else "context"
        try:
            step, tool_s = await self._step(run, text, completion)
        except DeadlineExceeded:
            self._record(run, span, text, completion, generate_s)
            return "timeout"
        self._record(run, span, text, completion, generate_s, step, tool_s)
        return step.outcome

    async def _complete(self, run: _Run, room: int) -> tuple[Completion, float]:
        sampling = Sampling(
            temperature=self._sampling.temperature,
            max_new_tokens=min(self._sampling.max_new_tokens, room),
            greedy=self._sampling.greedy,
        )
        seed = (run.member.rollout_seed + len(run.turns)) % 2**31
        with boundary(EngineError, f"the engine failed at {run.position}"):
            call = self._policy.complete(run.tokens.ids, sampling, seed=seed)
            completion, seconds = await run.watch.measure(call, f"the engine to complete {run.position}")
        if completion.finish_reason == "abort" or not len(completion.token_ids):
            raise EngineError(f"the engine aborted {run.position}")
        if not np.isfinite(completion.logprobs).all():
            raise EngineError(f"the engine sampled {run.position} with log-probabilities that are not finite")
        return completion, seconds

    async def _step(self, run: _Run, text: str, completion: Completion) -> tuple[EnvStep, float]:
        with _environment_of(run.member.task):
            call = self._env.step(text, finish_reason=completion.finish_reason)
            return await run.watch.measure(call, f"the tools of {run.position}")

    def _record(
        self,
        run: _Run,
        span: tuple[int, int],
        text: str,
        completion: Completion,
        generate_s: float,
        step: EnvStep | None = None,
        tool_s: float = 0.0,
    ) -> None:
        run.turns.append(
            Turn(
                completion=span,
                observation=(span[1], span[1]) if step is None or step.terminated else self._observe(run, step.messages),
                text=text,
                calls=step.calls if step else (),
                messages=step.messages if step else (),
                finish_reason=completion.finish_reason,
                state_hash=step.state_hash if step else "",
                potential=step.potential if step else None,
                generate_s=generate_s,
                tool_s=tool_s,
            )
        )

    def _observe(self, run: _Run, messages: Sequence[Message]) -> tuple[int, int]:
        with _environment_of(run.member.task):  # text that no tokenizer reads
            ids = self._chat.observation_ids(messages)
        return run.tokens.given(ids[: self._room(run)])


def _environment_of(task: Task) -> AbstractContextManager[None]:
    return boundary(EnvironmentFault, f"environment {task.family!r} failed on task {task.task_id}")
