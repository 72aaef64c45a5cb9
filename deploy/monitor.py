"""Monitor: what the run is doing, as a live view and as metrics."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from actors.report import GroupReport, exploration_metrics, rollout_metrics
from cacherl.config import RunConfig
from cacherl.errors import EnvironmentFault
from cacherl.metrics import MetricWriter
from deploy.panel import Panel
from deploy.run_view import RunView

logger = logging.getLogger(__name__)

#: Seconds over which tokens per second are averaged, groups over which training success is.
_RATE_WINDOW_S = 20.0
_SUCCESS_WINDOW = 32


@dataclass(slots=True)
class Monitor:
    """Collects what the loop reports; single-threaded, owned by the driver.

    Attributes:
        view: the latest state, as the panel shows it.
        held_out: greedy success of every evaluation so far.
    """

    config: RunConfig
    writer: MetricWriter
    panel: Panel
    view: RunView
    started: float = field(default_factory=time.monotonic)
    held_out: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    episodes: int = 0
    _tool_calls: int = 0
    _failed_in_a_row: int = 0
    _since_update: list[GroupReport] = field(default_factory=list)
    _recent: deque[GroupReport] = field(default_factory=lambda: deque(maxlen=_SUCCESS_WINDOW))
    _tokens: deque[tuple[float, int]] = field(default_factory=deque)
    _drained_at: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def show(self, **changes: object) -> None:
        """Change fields of the view and draw it."""
        self.view = replace(self.view, elapsed_s=self.elapsed_s, **changes)  # type: ignore[arg-type]
        self.panel.show(self.view)

    def note(self, text: str) -> None:
        """Tell the person who watches; also in the log."""
        logger.info("%s", text)
        self.show(notes=(*self.view.notes, text))

    def enter(self, phase: str, waiting_for: str = "") -> None:
        """Begin a phase of the run; the time until the next one is booked on it."""
        self._book()
        if phase == "training" and self._drained_at is None:
            self._drained_at = time.monotonic()
        self.show(phase=phase, waiting_for=waiting_for)

    def _book(self) -> None:
        booked = sum(self.phases.values())
        if self.view.phase:
            self.phases[self.view.phase] = self.phases.get(self.view.phase, 0.0) + self.elapsed_s - booked

    def close(self) -> None:
        """Book the last phase."""
        self._book()

    def state_dict(self) -> dict[str, Any]:
        """What the run has done so far, for a resumed session to go on counting."""
        elapsed_s = self.elapsed_s
        running = {self.view.phase: self.phases.get(self.view.phase, 0.0) + elapsed_s - sum(self.phases.values())}
        return {
            "elapsed_s": elapsed_s,
            "held_out": list(self.held_out),
            "phases": self.phases | running,
            "episodes": self.episodes,
            "tool_calls": self._tool_calls,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from an earlier session; its time is part of the run's."""
        self.started -= state["elapsed_s"]
        self.held_out, self.phases = list(state["held_out"]), dict(state["phases"])
        self.episodes, self._tool_calls = state["episodes"], state["tool_calls"]
        self.show(held_out=tuple(self.held_out), episodes=self.episodes)

    def on_report(self, report: GroupReport) -> None:
        """Take in a finished group.

        Raises:
            EnvironmentFault: more groups in a row than rollout.max_failed_groups have no finished member.
        """
        self._failed_in_a_row = 0 if report.episodes else self._failed_in_a_row + 1
        if self._failed_in_a_row > self.config.rollout.max_failed_groups:
            raise EnvironmentFault(
                f"{self._failed_in_a_row} groups in a row failed (rollout.max_failed_groups); the last one because of: "
                f"{report.errors[-1] if report.errors else 'no reason given'}"
            )
        self.episodes += len(report.episodes)
        self._tool_calls += sum(episode.tool_calls for episode in report.episodes)
        self._since_update.append(report)
        self._recent.append(report)
        self._tokens.append((time.monotonic(), _sampled_tokens(report)))
        metrics = rollout_metrics(list(self._recent))
        self.show(
            episodes=self.episodes,
            tokens_per_s=self.tokens_per_s(),
            success=metrics.get("rollout/success"),
            reward_parts=_family(metrics, "reward/"),
        )

    def tokens_per_s(self) -> float:
        """Sampled tokens of the groups that finished in the last seconds, per second, all actors."""
        now = time.monotonic()
        while self._tokens and self._tokens[0][0] < now - _RATE_WINDOW_S:
            self._tokens.popleft()
        return sum(count for _, count in self._tokens) / min(_RATE_WINDOW_S, max(1.0, now - self.started))

    def drain(self) -> dict[str, float]:
        """Rollout metrics since the last drain, and those of an explorer if there is one."""
        reports, self._since_update = self._since_update, []
        metrics = rollout_metrics(reports) | (exploration_metrics(reports) if self.config.exploration.rate else {})
        return metrics | {
            "rollout/episodes": float(self.episodes),
            "rollout/tool_calls": float(self._tool_calls),
            "rollout/tokens_per_s": self._rate_since_drain(reports),
            "time/elapsed": self.elapsed_s,
        }

    def _rate_since_drain(self, reports: Sequence[GroupReport]) -> float:
        """Sampled tokens a second since the last drain, or since training began: an update may outlast a window."""
        now = time.monotonic()
        seconds = now - (self.started if self._drained_at is None else self._drained_at)
        self._drained_at = now
        return sum(_sampled_tokens(report) for report in reports) / max(1e-9, seconds)

    def on_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Take in an evaluation."""
        self.held_out.append(metrics["eval/success"])
        self.show(held_out=tuple(self.held_out))

    def on_update(self, version: int, metrics: Mapping[str, float]) -> None:
        """Record one update's metrics and draw."""
        self.writer.write(version, metrics)
        self.show(
            update=version,
            kl=metrics.get("learner/kl"),
            staleness=metrics.get("replay/staleness"),
            variance_shares=_family(metrics, "reward_batch/variance_share/"),
            pool_trajectories=int(metrics.get("replay/trajectories", 0)),
            pool_groups=int(metrics.get("replay/groups", 0)),
        )


def _sampled_tokens(report: GroupReport) -> int:
    return sum(episode.sampled_tokens for episode in report.episodes)


def _family(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """The metrics of one family, by what follows `prefix`."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
