"""The alarm for reward hacking: a part of the reward that is not the outcome drives the gradient, and success does not rise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cacherl.alarm_settings import RewardHackingSection
from cacherl.trajectory import Trajectory, TrajectoryGroup
from deploy.alarms import Alarm, Finding, Observation, Window, Windowed

NAME = "reward_hacking"
#: Folder of the evidence within the run's folder.
FOLDER = "alarms"
REMEDY = (
    "Read the trajectories; then lower the part's weight, pay it only once, or tie it to the outcome "
    "(docs/tuning.md, 'Reward hacking')."
)

_SHARE = "reward_batch/variance_share/"
_SUCCESS = "rollout/success"
#: Training success from which on it need not rise any more.
_SOLVED = 0.95
#: Trajectories that are written as evidence.
_SHOWN = 5

Fetch = Callable[[Sequence[str]], Sequence[TrajectoryGroup | None]]


def reward_hacking_alarm(settings: RewardHackingSection, *, fetch: Fetch, run_dir: Path) -> Alarm:
    """The alarm of a run.

    Args:
        fetch: reads groups of the pool by id, None for one that has left it.
        run_dir: the run's folder, in which the evidence is written.
    """
    return Alarm(
        name=NAME,
        condition=hacking_condition(settings),
        remedy=REMEDY,
        evidence=HackingEvidence(fetch=fetch, run_dir=run_dir),
    )


def hacking_condition(settings: RewardHackingSection) -> Windowed[Mapping[str, float]]:
    """Finds the auxiliary parts whose share of the variance within groups, mean over the window, is at least
    `variance_share`, unless success rose over the window or is near 1.

    An update in which no episode finished, or whose groups had no variance, is not part of the window.
    """

    def judge(window: Window[Mapping[str, float]]) -> Sequence[Finding]:
        updates = window.last
        success = _halves([update[_SUCCESS] for update in updates])
        if success[1] >= _SOLVED or success[1] - success[0] > settings.min_rise:
            return ()
        measured = {name.removeprefix(_SHARE) for update in updates for name in update if name.startswith(_SHARE)}
        names = sorted(measured - set(settings.outcome_parts))
        shares = {name: fmean(update.get(_SHARE + name, 0.0) for update in updates) for name in names}
        return [
            _finding(name, share, len(updates), success) for name, share in shares.items() if share >= settings.variance_share
        ]

    return Windowed(length=settings.window, measure=_measured, judge=judge)


def _halves(successes: Sequence[float]) -> tuple[float, float]:
    """Mean success of the window's first and second half; the middle one of an odd number belongs to the second."""
    half = len(successes) // 2
    return fmean(successes[:half]), fmean(successes[half:])


def _finding(part: str, share: float, updates: int, success: tuple[float, float]) -> Finding:
    return Finding(
        subject=part,
        text=(
            f"the reward's part {part!r} makes {share:.0%} of the variance within groups, mean of {updates} updates, while "
            f"training success went from {success[0]:.2f} to {success[1]:.2f}."
        ),
    )


def _measured(metrics: Mapping[str, float]) -> Mapping[str, float] | None:
    """Training success, and every part's share of the variance within groups."""
    shares = {name: value for name, value in metrics.items() if name.startswith(_SHARE)}
    return {**shares, _SUCCESS: metrics[_SUCCESS]} if shares and _SUCCESS in metrics else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HackingEvidence:
    """Writes the trajectories that a part of the reward lifts most above their siblings, as JSON lines."""

    fetch: Fetch
    run_dir: Path

    def __call__(self, finding: Finding, observation: Observation) -> str:
        groups = [group for group in self.fetch(observation.group_ids) if group is not None]
        file = Path(FOLDER, f"{NAME}-{re.sub(r'[^A-Za-z0-9_.-]', '_', finding.subject)}-{observation.update}.jsonl")
        path = self.run_dir / file
        path.parent.mkdir(exist_ok=True)
        lines = [
            json.dumps({"part": finding.subject, "excess": excess, **readable(member)}, ensure_ascii=False)
            for excess, member in most_lifted(groups, finding.subject)
        ]
        # A model may well write half a surrogate pair, which no file takes as it is.
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", errors="backslashreplace")
        return str(file)


def most_lifted(groups: Sequence[TrajectoryGroup], part: str) -> list[tuple[float, Trajectory]]:
    """The policy's members that `part` lifts most above the mean of their group, with that excess in reward units; the highest
    first. What somebody else played tells nothing of what the policy exploits."""
    ranked: list[tuple[float, Trajectory]] = []
    for group in groups:
        values = [member.reward_parts.get(part, 0.0) for member in group.trajectories]
        pairs = zip(values, group.trajectories, strict=True)
        ranked += [(value - fmean(values), member) for value, member in pairs if not member.foreign]
    return sorted(ranked, key=lambda pair: -pair[0])[:_SHOWN]


def readable(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory for people: its rewards, and turn by turn what was said, called, answered and paid."""
    return {
        "trajectory_id": trajectory.trajectory_id,
        "task_id": trajectory.task_id,
        "outcome": trajectory.outcome,
        "return": trajectory.total_reward,
        "parts": trajectory.reward_parts,
        "turns": [
            {
                "text": turn.text,
                "calls": [
                    {"name": call.name, "arguments": dict(call.arguments), "error": call.error, "tags": list(call.tags)}
                    for call in turn.calls
                ],
                "results": [message.content for message in turn.messages],
                "rewards": dict(turn.rewards),
            }
            for turn in trajectory.turns
        ],
    }
