"""The alarm for reward hacking: a part of the reward that is not the outcome drives the gradient, and success does not rise."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from cacherl.config import RewardHackingSection
from cacherl.trajectory import Trajectory, TrajectoryGroup
from deploy.alarms import Alarm, Finding, Observation

NAME = "reward_hacking"
#: Folder of the evidence within the run's folder.
FOLDER = "alarms"
REMEDY = (
    "Read the trajectories; then lower the part's weight, pay it only once, or tie it to the outcome "
    "(docs/tuning.md, 'Reward hacking')."
)

_SHARE = "reward_batch/variance_share/"
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
        condition=HackingCondition(settings=settings),
        remedy=REMEDY,
        evidence=HackingEvidence(fetch=fetch, run_dir=run_dir),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """One update of the window: component -> share of the variance within groups, and training success in [0, 1]."""

    shares: Mapping[str, float]
    success: float


@dataclass(slots=True, kw_only=True)
class HackingCondition:
    """Finds the auxiliary parts whose share of the variance within groups, mean over the window, is at least
    `variance_share`, unless success rose over the window or is near 1.

    An update in which no episode finished, or whose groups had no variance, is not part of the window.
    """

    settings: RewardHackingSection
    _window: deque[_Update] = field(default_factory=deque)

    def __call__(self, observation: Observation) -> Sequence[Finding]:
        update = _measured(observation.metrics)
        if update is None:
            return ()
        self._window.append(update)
        if len(self._window) > self.settings.window:
            self._window.popleft()
        if len(self._window) < self.settings.window or not self._stuck():
            return ()
        names = sorted({name for known in self._window for name in known.shares} - set(self.settings.outcome_parts))
        return [self._finding(name) for name in names if self._share(name) >= self.settings.variance_share]

    def _halves(self) -> tuple[float, float]:
        """Mean success of the window's first and second half; the middle one of an odd number belongs to the second."""
        successes = [update.success for update in self._window]
        half = len(successes) // 2
        return fmean(successes[:half]), fmean(successes[half:])

    def _stuck(self) -> bool:
        before, after = self._halves()
        return after < _SOLVED and after - before <= self.settings.min_rise

    def _share(self, name: str) -> float:
        return fmean(update.shares.get(name, 0.0) for update in self._window)

    def _finding(self, name: str) -> Finding:
        before, after = self._halves()
        return Finding(
            subject=name,
            text=(
                f"the reward's part {name!r} makes {self._share(name):.0%} of the variance within groups, mean of "
                f"{len(self._window)} updates, while training success went from {before:.2f} to {after:.2f}."
            ),
        )


def _measured(metrics: Mapping[str, float]) -> _Update | None:
    shares = {name.removeprefix(_SHARE): value for name, value in metrics.items() if name.startswith(_SHARE)}
    success = metrics.get("rollout/success")
    return None if success is None or not shares else _Update(shares=shares, success=success)


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
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
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
