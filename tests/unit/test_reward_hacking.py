"""The alarm goes off for a part that drives the gradient while success stands still, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cacherl.alarm_settings import RewardHackingSection
from cacherl.config import parse_config
from cacherl.errors import ConfigError
from cacherl.trajectory import Message, ToolCall, Trajectory, TrajectoryGroup, Turn
from deploy.alarms import ALARMS_FILE, AlarmBoard, Finding, Observation
from deploy.reward_hacking import HackingEvidence, hacking_condition, most_lifted, reward_hacking_alarm
from deploy.run_record import read_run
from fakes import group_of, two_turns

SETTINGS = RewardHackingSection(window=4, variance_share=0.6, min_rise=0.05)


def at(update: int, *, success: float | None, **shares: float) -> Observation:
    metrics = {f"reward_batch/variance_share/{name}": share for name, share in shares.items()}
    return Observation(update=update, metrics=metrics | ({} if success is None else {"rollout/success": success}))


def judged(successes: Sequence[float | None], shares: Sequence[float], settings: RewardHackingSection = SETTINGS) -> list[str]:
    """What is found after each update, as subjects joined by commas."""
    condition = hacking_condition(settings)
    return [
        ",".join(f.subject for f in condition(at(update, success=success, tool_use=share, final=1 - share)))
        for update, (success, share) in enumerate(zip(successes, shares, strict=True))
    ]


def test_found_once_the_window_is_full() -> None:
    assert judged([0.2] * 6, [0.9] * 6) == ["", "", "", "tool_use", "tool_use", "tool_use"]


def test_the_share_is_the_mean_over_the_window() -> None:
    assert judged([0.2] * 6, [0.0, 0.0, 0.9, 0.9, 0.9, 0.9]) == ["", "", "", "", "tool_use", "tool_use"]


def test_not_found_while_success_rises() -> None:
    assert judged([0.1, 0.1, 0.16, 0.16], [0.9] * 4)[-1] == ""
    assert judged([0.1, 0.1, 0.14, 0.14], [0.9] * 4)[-1] == "tool_use"
    assert judged([0.5, 0.5, 0.1, 0.1], [0.9] * 4)[-1] == "tool_use"


def test_not_found_for_the_outcome_nor_once_the_task_is_solved() -> None:
    assert judged([0.2] * 4, [0.1] * 4)[-1] == "", "the outcome may drive as much as it likes"
    assert judged([0.97] * 4, [0.9] * 4)[-1] == ""
    own = RewardHackingSection(window=4, variance_share=0.6, outcome_parts=("final", "tool_use"))
    assert judged([0.2] * 4, [0.9] * 4, own)[-1] == ""


def test_updates_without_a_measurement_are_not_part_of_the_window() -> None:
    assert judged([0.2, None, 0.2, 0.2, None, 0.2], [0.9] * 6) == ["", "", "", "", "", "tool_use"]
    condition = hacking_condition(SETTINGS)
    assert not any(condition(at(update, success=0.2)) for update in range(9))


def test_the_finding_has_the_figures() -> None:
    condition = hacking_condition(SETTINGS)
    for update, success in enumerate([0.3, 0.3, 0.2, 0.2]):
        found = condition(at(update, success=success, tool_use=0.75, final=0.25))
    assert found == [
        Finding(
            subject="tool_use",
            text="the reward's part 'tool_use' makes 75% of the variance within groups, mean of 4 updates, while training "
            "success went from 0.30 to 0.20.",
        )
    ]


def calling(trajectory_id: str, paid: float) -> Trajectory:
    """Two turns, the first of which earned `paid` for a call."""
    call = ToolCall(name="search", arguments={"query": "é"}, ok=False, error="arguments", tags=("irrelevant",))
    first = Turn(
        completion=(3, 6),
        observation=(6, 8),
        text="search é",
        calls=(call,),
        messages=(Message(role="tool", content="bad query", name="search"),),
        rewards={"tool_use": paid},
    )
    return two_turns(
        trajectory_id=trajectory_id,
        turns=(first, Turn(completion=(8, 10), observation=(10, 10), text="b")),
        rewards={"final": 0.0},
        outcome=0.0,
    )


GROUPS = [
    group_of(*(calling(f"a{index}", paid) for index, paid in enumerate((0.9, 0.9, 0.9, 0.8)))),
    group_of(*(calling(f"b{index}", paid) for index, paid in enumerate((0.0, 0.4, 0.1, 0.1)))),
]


def test_the_trajectories_that_show_it_are_those_lifted_above_their_siblings() -> None:
    ranked = most_lifted(GROUPS, "tool_use")
    assert [member.trajectory_id for _, member in ranked] == ["b1", "a0", "a1", "a2", "b2"]
    assert [excess for excess, _ in ranked] == pytest.approx([0.25, 0.025, 0.025, 0.025, -0.05])


def test_what_the_policy_did_not_play_is_no_evidence() -> None:
    shown = two_turns(trajectory_id="shown", source="demonstration", rewards={"tool_use": 9.0})
    ranked = most_lifted([group_of(two_turns(), shown)], "tool_use")
    assert [(member.trajectory_id, excess) for excess, member in ranked] == [("t", pytest.approx((0.05 - 9.05) / 2))]


def test_evidence_is_readable_and_survives_groups_that_left_the_pool(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def fetch(group_ids: Sequence[str]) -> list[TrajectoryGroup | None]:
        asked.append(group_ids)
        return [GROUPS[1], None]

    evidence = HackingEvidence(fetch=fetch, run_dir=tmp_path)
    observation = Observation(update=7, metrics={}, group_ids=("b", "gone"))
    file = evidence(Finding(subject="my.part/x", text=""), observation)
    assert file == "alarms/reward_hacking-my.part_x-7.jsonl"
    file = evidence(Finding(subject="tool_use", text=""), observation)
    assert asked == [("b", "gone")] * 2
    records = [json.loads(line) for line in (tmp_path / file).read_text("utf-8").splitlines()]
    assert [record["trajectory_id"] for record in records] == ["b1", "b2", "b3", "b0"]
    assert records[0]["excess"] == pytest.approx(0.25)
    assert (records[0]["outcome"], records[0]["parts"]) == (0.0, {"final": 0.0, "tool_use": 0.4})
    assert records[0]["turns"][0] == {
        "text": "search é",
        "calls": [{"name": "search", "arguments": {"query": "é"}, "error": "arguments", "tags": ["irrelevant"]}],
        "results": ["bad query"],
        "rewards": {"tool_use": 0.4},
    }


def test_an_alarm_leaves_a_line_that_the_report_reads(tmp_path: Path) -> None:
    alarm = reward_hacking_alarm(SETTINGS, fetch=lambda group_ids: GROUPS[:1], run_dir=tmp_path)
    board = AlarmBoard([alarm], log=tmp_path / ALARMS_FILE)
    events = [event for update in range(6) for event in board.check(at(update, success=0.1, tool_use=0.9)).events]
    assert [(event.update, event.subject, event.evidence) for event in events] == [
        (3, "tool_use", "alarms/reward_hacking-tool_use-3.jsonl")
    ]
    assert read_run(tmp_path).alarms == tuple(events)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"alarms\.reward_hacking\.window: .* greater than or equal to 2 \(got 1\)"):
        parse_config({"alarms": {"reward_hacking": {"window": 1}}})
    with pytest.raises(ConfigError, match=r"alarms\.reward_hacking\.variance_share: "):
        parse_config({"alarms": {"reward_hacking": {"variance_share": 1.5}}})
