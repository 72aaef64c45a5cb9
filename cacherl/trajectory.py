"""Message, ToolCall, Turn, Trajectory, TrajectoryGroup: what a rollout is, token by token.

A trajectory is one growing token sequence. The engine consumed a prefix of it and produced the next span, turn
after turn; nothing in it was ever decoded and tokenised again::

    token_ids         p p p p | s s s s E | o o o | s s s E
    loss_mask         . . . . | 1 1 1 1 1 | . . . | 1 1 1 1      (E = end-of-turn token, sampled too)
    rollout_logprobs  0 0 0 0 | x x x x x | 0 0 0 | x x x x
    policy_versions  -1-1-1-1 | 4 4 5 5 5 |-1-1-1 | 5 5 5 5      (the weights changed in flight after two tokens)
                      prompt    turn 0      turn 0   turn 1
                                completion  observation

"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

Role = Literal["system", "user", "assistant", "tool"]
StatusKind = Literal["terminated", "truncated", "error"]
Source = Literal["policy", "random", "demonstration"]
Tier = Literal["live", "exact", "normalised", "best_effort"]

#: `policy_versions` entry of a token that no policy sampled.
NO_VERSION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message, as text. `name` is the tool's name for role 'tool', else None."""

    role: Role
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call of a turn and what became of it.

    Attributes:
        name: the tool's name as the model wrote it ('' when unreadable).
        arguments: the parsed JSON object ({} when unreadable).
        ok: the tool ran and returned a result.
        error: kind of failure ('parse', 'unknown_tool', 'arguments', 'transient', 'timeout', 'unrecorded', 'tool'; of code in
            the sandbox also 'overtime', 'memory' and 'crash'), None when ok.
        repairs: names of the recorded repairs that the parser made to the text.
        tags: facts that the environment states about the call for the reward ('needed', 'first', 'repeat', ...).
        seconds: how long the call took, including simulated latency.
        tier: where the result came from: the tool itself ('live') or the tool-result cache, and how closely the recorded call
            matches; None: there is no such cache, or no tool was reached.
    """

    name: str
    arguments: Mapping[str, Any]
    ok: bool
    error: str | None = None
    repairs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    seconds: float = 0.0
    tier: Tier | None = None

    def __post_init__(self) -> None:
        if self.ok == (self.error is not None):
            raise ValueError(f"ToolCall {self.name!r}: ok={self.ok} contradicts error={self.error!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How an episode ended.

    kind 'terminated': the environment ended it; 'truncated': a limit did (reason says which: 'turns', 'tokens', 'context',
    'timeout'); 'error': infrastructure did (reason is the kind of failure), and the trajectory must not be trained on.
    """

    kind: StatusKind
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.kind != "terminated" and not self.reason:
            raise ValueError(f"Status kind={self.kind!r} needs a reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completion and the tool results that answered it.

    Attributes:
        completion: half-open span ``[start, stop)`` of the sampled tokens in the trajectory's `token_ids`.
        observation: half-open span of the tool results' and template's tokens that follow ((stop, stop) if none).
        text: the completion decoded, for people and for the environment; never tokenised again.
        calls: the tool calls found in the completion, in order.
        messages: the tool results as messages, in order.
        rewards: weighted reward per component, in reward units; their sum is the turn's reward.
        finish_reason: why the engine stopped: 'stop', 'length' or 'abort'.
        state_hash: hash of the environment's state before the turn ('' where the environment has none).
        potential: how promising the environment finds that state, in [0, 1]; None where it does not say.
        generate_s, tool_s: seconds spent in the engine and in the tools.
    """

    completion: tuple[int, int]
    observation: tuple[int, int]
    text: str
    calls: tuple[ToolCall, ...] = ()
    messages: tuple[Message, ...] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)
    finish_reason: str = "stop"
    state_hash: str = ""
    potential: float | None = None
    generate_s: float = 0.0
    tool_s: float = 0.0

    @property
    def reward(self) -> float:
        """Sum of the turn's reward components."""
        return float(sum(self.rewards.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished, scored episode of T tokens and `len(turns)` turns.

    Attributes:
        token_ids: int32 [T], prompt first.
        loss_mask: bool [T], true exactly on sampled tokens.
        rollout_logprobs: float32 [T], log-probability of each sampled token under the distribution it was sampled from
            (temperature included); 0 elsewhere.
        policy_versions: int32 [T], version of the weights that sampled the token; `NO_VERSION` elsewhere.
        temperature: sampling temperature behind `rollout_logprobs`.
        rewards: weighted trajectory-level reward components ('final', ...), in reward units.
        outcome: the raw verdict, 1.0 success, 0.0 failure (partial credit between); never shaped.
        rollout_seed: seed of the tool noise of this member; `Task.seed` fixed the world.
        source: who acted: the trained policy, a random policy, or a demonstration.
        prompt: the task's messages, as text for the reward and for people; () where it was not recorded.
        started_at: unix seconds; duration_s: seconds.

    Raises:
        ValueError: lengths, spans, mask, log-probabilities and versions do not agree.
    """

    trajectory_id: str
    task_id: str
    family: str
    level: int
    split: str
    token_ids: Int32Array
    loss_mask: BoolArray
    rollout_logprobs: Float32Array
    policy_versions: Int32Array
    temperature: float
    turns: tuple[Turn, ...]
    rewards: Mapping[str, float]
    outcome: float
    status: Status
    task_seed: int
    rollout_seed: int
    source: Source = "policy"
    started_at: float = 0.0
    duration_s: float = 0.0
    prompt: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        for name, array, kind in (
            ("token_ids", self.token_ids, np.int32),
            ("loss_mask", self.loss_mask, np.bool_),
            ("rollout_logprobs", self.rollout_logprobs, np.float32),
            ("policy_versions", self.policy_versions, np.int32),
        ):
            if array.ndim != 1 or array.dtype != kind:
                raise ValueError(
                    f"trajectory {self.trajectory_id}: {name} must be {np.dtype(kind).name} [T], "
                    f"got {array.dtype} {list(array.shape)}"
                )
            if len(array) != length:
                raise ValueError(f"trajectory {self.trajectory_id}: {name} has {len(array)} entries, token_ids {length}")
        if not self.temperature > 0:
            raise ValueError(f"trajectory {self.trajectory_id}: temperature must be > 0, got {self.temperature}")
        self._check_spans(length)
        if not np.isfinite(self.rollout_logprobs).all() or (self.rollout_logprobs > 0).any():
            raise ValueError(f"trajectory {self.trajectory_id}: rollout_logprobs must be finite and <= 0")
        if (self.rollout_logprobs[~self.loss_mask] != 0).any():
            raise ValueError(f"trajectory {self.trajectory_id}: rollout_logprobs must be 0 where loss_mask is false")
        if ((self.policy_versions == NO_VERSION) == self.loss_mask).any():
            raise ValueError(f"trajectory {self.trajectory_id}: policy_versions must be set exactly where loss_mask is true")

    def _check_spans(self, length: int) -> None:
        sampled = np.zeros(length, dtype=np.bool_)
        position = 0
        for index, turn in enumerate(self.turns):
            (start, stop), (obs_start, obs_stop) = turn.completion, turn.observation
            if not position <= start <= stop == obs_start <= obs_stop <= length or (index and start != position):
                raise ValueError(
                    f"trajectory {self.trajectory_id}: turn {index} spans {turn.completion} {turn.observation} do not "
                    f"continue at {position} within {length} tokens"
                )
            sampled[start:stop] = True
            position = obs_stop
        if self.turns and position != length:
            raise ValueError(f"trajectory {self.trajectory_id}: turns end at {position}, token_ids at {length}")
        if not np.array_equal(sampled, self.loss_mask):
            raise ValueError(f"trajectory {self.trajectory_id}: loss_mask is not true exactly on the turns' completions")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_length(self) -> int:
        """Tokens before the first sampled one."""
        return self.turns[0].completion[0] if self.turns else len(self)

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return int(self.loss_mask.sum())

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of all turn and trajectory components: the return that advantages are made of."""
        return float(sum(self.rewards.values())) + sum(turn.reward for turn in self.turns)

    @property
    def reward_parts(self) -> dict[str, float]:
        """Component -> its sum over turns and trajectory level; the values add up to `total_reward`."""
        parts = dict(self.rewards)
        for turn in self.turns:
            for name, value in turn.rewards.items():
                parts[name] = parts.get(name, 0.0) + value
        return parts

    @property
    def foreign(self) -> bool:
        """Whether somebody else than the trained policy acted, so that its log-probabilities and versions say nothing."""
        return self.source != "policy"

    @property
    def version_range(self) -> tuple[int, int]:
        """Lowest and highest policy version among the sampled tokens; (NO_VERSION, NO_VERSION) without any."""
        versions = self.policy_versions[self.loss_mask]
        return (int(versions.min()), int(versions.max())) if len(versions) else (NO_VERSION, NO_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The finished siblings of one task: the unit of replay.

    Attributes:
        group_id: globally unique; a repeated push of it is recognised.
        trajectories: the G members that finished; failed ones (status 'error') are never among them.
        num_failed: members that were dispatched and failed.
        created_at: unix seconds.

    Raises:
        ValueError: empty, members of different tasks, or a failed member.
    """

    group_id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    num_failed: int = 0
    created_at: float = 0.0

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError(f"group {self.group_id}: has no trajectory")
        for member in self.trajectories:
            if member.task_id != self.task_id:
                raise ValueError(f"group {self.group_id}: member of task {member.task_id}, expected {self.task_id}")
            if member.status.kind == "error":
                raise ValueError(f"group {self.group_id}: failed member {member.trajectory_id} ({member.status.reason})")

    def __len__(self) -> int:
        return len(self.trajectories)

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """float64 [G], `total_reward` of each member."""
        return np.array([member.total_reward for member in self.trajectories], dtype=np.float64)

    @property
    def outcomes(self) -> npt.NDArray[np.float64]:
        """float64 [G], raw verdicts."""
        return np.array([member.outcome for member in self.trajectories], dtype=np.float64)

    @property
    def num_tokens(self) -> int:
        """Tokens of all members, prompts included."""
        return sum(len(member) for member in self.trajectories)

    @property
    def version_range(self) -> tuple[int, int]:
        """Lowest and highest policy version over the members that the policy played; over all if it played none."""
        own = [member for member in self.trajectories if not member.foreign]
        ranges = [member.version_range for member in own or self.trajectories]
        known = [pair for pair in ranges if pair[0] != NO_VERSION]
        if not known:
            return NO_VERSION, NO_VERSION
        return min(low for low, _ in known), max(high for _, high in known)
