"""What a trajectory and a group accept, and what they say about themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cacherl.trajectory import NO_VERSION, Status, ToolCall, Trajectory, Turn
from fakes import group_of, two_turns


def untrained(**changes: Any) -> Trajectory:
    """A prompt of two tokens that nobody answered."""
    fields: dict[str, Any] = {
        "token_ids": np.array([1, 2], np.int32),
        "loss_mask": np.zeros(2, np.bool_),
        "rollout_logprobs": np.zeros(2, np.float32),
        "policy_versions": np.full(2, NO_VERSION, np.int32),
        "turns": (),
        "rewards": {},
        "outcome": 0.0,
        "status": Status(kind="truncated", reason="context"),
    }
    return two_turns(**{**fields, **changes})


def changed(name: str, index: int, value: float) -> dict[str, Any]:
    """Field `name` of `two_turns` with one entry changed."""
    array = getattr(two_turns(), name).copy()
    array[index] = value
    return {name: array}


def turns(*spans: tuple[tuple[int, int], tuple[int, int]]) -> dict[str, Any]:
    return {"turns": tuple(Turn(completion=sampled, observation=observed, text="") for sampled, observed in spans)}


def test_properties_of_a_two_turn_trajectory() -> None:
    trajectory = two_turns()
    assert len(trajectory) == 10
    assert trajectory.prompt_length == 3
    assert trajectory.num_sampled == 5
    assert trajectory.version_range == (4, 6)
    assert trajectory.total_reward == pytest.approx(1.01)
    assert trajectory.reward_parts == pytest.approx({"final": 1.0, "tool_use": 0.05, "step_penalty": -0.04})
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.03, -0.02])


def test_a_group_is_as_old_as_what_the_policy_played_of_it() -> None:
    versions = two_turns().policy_versions
    random = two_turns(policy_versions=np.where(versions == NO_VERSION, NO_VERSION, 0).astype(np.int32), source="random")
    assert (two_turns().foreign, random.foreign) == (False, True)
    assert group_of(two_turns(), random).version_range == (4, 6)
    assert group_of(random, random).version_range == (0, 0)


def test_the_mask_is_true_exactly_on_the_completions() -> None:
    trajectory = two_turns()
    inside = {index for turn in trajectory.turns for index in range(*turn.completion)}
    assert set(np.flatnonzero(trajectory.loss_mask).tolist()) == inside == {3, 4, 5, 8, 9}


def test_a_prompt_that_nobody_answered() -> None:
    trajectory = untrained()
    assert (trajectory.prompt_length, trajectory.num_sampled, trajectory.total_reward) == (2, 0, 0.0)
    assert trajectory.version_range == (NO_VERSION, NO_VERSION)
    assert trajectory.reward_parts == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": np.arange(10)}, r"token_ids must be int32 \[T\], got int64 \[10\]"),
        ({"loss_mask": np.zeros((2, 5), np.bool_)}, r"loss_mask must be bool \[T\], got bool \[2, 5\]"),
        ({"rollout_logprobs": np.zeros(10)}, r"rollout_logprobs must be float32 \[T\], got float64"),
        ({"policy_versions": np.zeros(10, np.int64)}, r"policy_versions must be int32 \[T\], got int64"),
        ({"loss_mask": np.zeros(9, np.bool_)}, "loss_mask has 9 entries, token_ids 10"),
        ({"policy_versions": np.zeros(11, np.int32)}, "policy_versions has 11 entries, token_ids 10"),
        ({"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be > 0, got nan"),
        (turns(((3, 6), (7, 8)), ((8, 10), (10, 10))), r"turn 0 spans \(3, 6\) \(7, 8\) do not continue at 0 within 10"),
        (turns(((3, 6), (6, 7)), ((8, 10), (10, 10))), r"turn 1 spans \(8, 10\) \(10, 10\) do not continue at 7 within 10"),
        (turns(((3, 6), (6, 8)), ((7, 10), (10, 10))), r"turn 1 spans \(7, 10\) \(10, 10\) do not continue at 8"),
        (turns(((6, 3), (3, 8)), ((8, 10), (10, 10))), r"turn 0 spans \(6, 3\)"),
        (turns(((3, 6), (6, 8)), ((8, 10), (10, 12))), r"turn 1 spans \(8, 10\) \(10, 12\) do not continue at 8 within 10"),
        (turns(((-1, 6), (6, 8)), ((8, 10), (10, 10))), r"turn 0 spans \(-1, 6\)"),
        (turns(((3, 6), (6, 8))), "turns end at 8, token_ids at 10"),
        (changed("loss_mask", 7, True), "loss_mask is not true exactly on the turns' completions"),
        (changed("loss_mask", 4, False), "loss_mask is not true exactly on the turns' completions"),
        ({"turns": ()}, "loss_mask is not true exactly on the turns' completions"),
        (changed("rollout_logprobs", 4, np.nan), "rollout_logprobs must be finite and <= 0"),
        (changed("rollout_logprobs", 4, -np.inf), "rollout_logprobs must be finite and <= 0"),
        (changed("rollout_logprobs", 4, 0.1), "rollout_logprobs must be finite and <= 0"),
        (changed("rollout_logprobs", 6, -0.1), "rollout_logprobs must be 0 where loss_mask is false"),
        (changed("policy_versions", 4, NO_VERSION), "policy_versions must be set exactly where loss_mask is true"),
        (changed("policy_versions", 0, 3), "policy_versions must be set exactly where loss_mask is true"),
    ],
)
def test_what_does_not_agree_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^trajectory t: {message}"):
        two_turns(**changes)


@pytest.mark.parametrize(("ok", "error"), [(True, "tool"), (False, None)])
def test_a_call_succeeds_or_says_why_not(ok: bool, error: str | None) -> None:
    with pytest.raises(ValueError, match=f"^ToolCall 'f': ok={ok} contradicts error={error!r}$"):
        ToolCall(name="f", arguments={}, ok=ok, error=error)


@pytest.mark.parametrize("kind", ["truncated", "error"])
def test_an_early_end_has_a_reason(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"^Status kind='{kind}' needs a reason$"):
        Status(kind=kind)
    assert Status(kind=kind, reason="turns").reason == "turns"


def test_a_group_adds_its_members_up() -> None:
    group = group_of(two_turns(), untrained(trajectory_id="u"), num_failed=1)
    assert (len(group), group.num_tokens, group.version_range) == (2, 12, (4, 6))
    assert group.returns == pytest.approx([1.01, 0.0])
    assert group.outcomes.tolist() == [1.0, 0.0]
    assert group_of(untrained()).version_range == (NO_VERSION, NO_VERSION)


def test_a_group_spans_the_versions_of_all_members() -> None:
    versions = two_turns().policy_versions
    later = two_turns(policy_versions=np.where(versions == NO_VERSION, versions, versions + 7).astype(np.int32))
    assert group_of(later, two_turns()).version_range == (4, 13)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((), "has no trajectory"),
        ((two_turns(), two_turns(task_id="other")), "member of task other, expected task"),
        ((two_turns(status=Status(kind="error", reason="engine")),), r"failed member t \(engine\)"),
    ],
)
def test_a_group_refuses_what_would_spoil_its_baseline(members: tuple[Trajectory, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^group g: {message}$"):
        group_of(*members)
