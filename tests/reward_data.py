"""Trajectories written by hand for tests of the reward: what was said and called, without tokens that matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cacherl.config import RunConfig, parse_config
from cacherl.trajectory import Message, Status, Tier, ToolCall, Trajectory, Turn
from rewards.base import Step


def good(*tags: str, name: str = "read", **facts: Any) -> ToolCall:
    """A call that returned a result."""
    return ToolCall(name=name, arguments={}, ok=True, tags=tags, **facts)


def bad(error: str, *tags: str, **facts: Any) -> ToolCall:
    """A call that failed."""
    return ToolCall(name="read", arguments={}, ok=False, error=error, tags=tags, **facts)


def live(tier: Tier) -> ToolCall:
    """A call whose result is of a tier."""
    return good(tier=tier)


def says(text: str, *answered: tuple[ToolCall, str], potential: float | None = None) -> dict[str, Any]:
    """A turn: its text, and (call, result) pairs."""
    messages = tuple(Message(role="tool", content=result, name=call.name) for call, result in answered)
    return {"text": text, "calls": tuple(call for call, _ in answered), "messages": messages, "potential": potential}


def calls(*made: ToolCall) -> dict[str, Any]:
    """A turn that made calls, with results that say nothing."""
    return says("", *((call, "{}") for call in made))


def episode(*turns: dict[str, Any], outcome: float = 0.0, prompt: Sequence[str] = (), length: int | None = None) -> Trajectory:
    """Each turn samples one token; `length` tokens in all, at least one for the prompt."""
    total = max(length or 0, 1 + len(turns))
    first = total - len(turns)
    mask = np.arange(total) >= first
    return Trajectory(
        trajectory_id="t",
        task_id="task",
        family="f",
        level=1,
        split="train",
        token_ids=np.zeros(total, np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        temperature=1.0,
        turns=tuple(
            Turn(completion=(first + at, first + at + 1), observation=(first + at + 1, first + at + 1), **turn)
            for at, turn in enumerate(turns)
        ),
        rewards={},
        outcome=outcome,
        status=Status(kind="terminated"),
        task_seed=0,
        rollout_seed=0,
        prompt=tuple(Message(role="user", content=text) for text in prompt),
    )


def spends(step: Step, *, share: float) -> float:
    """A user's component: `share` for every call."""
    return share * len(step.calls)


def run_config(reward: dict[str, Any] | None = None, **sections: dict[str, Any]) -> RunConfig:
    """A config with these settings of the reward, and of other sections."""
    return parse_config({"reward": reward or {}, **sections})
