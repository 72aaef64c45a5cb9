"""Alarms: conditions that are judged after every update, and what a person is told when one holds.

An alarm never stops or changes a run. It shows in the console as a note with its remedy, in the metrics as
`alarm/<name>` (1 while raised), in the run's folder as a line of `alarms.jsonl`, and in the report.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from cacherl.errors import CacheRLError
from cacherl.stateful import Stateful

logger = logging.getLogger(__name__)

Measured = TypeVar("Measured")

#: File of a run's folder with every alarm that was raised, one JSON object a line.
ALARMS_FILE = "alarms.jsonl"

#: Updates in a row without the finding after which a raised alarm is clear again: a value that wavers about its
#: threshold raises one alarm, not one at every second update.
_CLEAR_AFTER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One update, as alarms see it.

    Attributes:
        update: optimizer steps so far, this one included.
        metrics: everything that was measured since the update before; a name that was not measured is absent.
        group_ids: the groups that the update trained on; they may have left the pool meanwhile.
    """

    update: int
    metrics: Mapping[str, float]
    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a condition found wrong.

    Attributes:
        text: a sentence with the figures.
        subject: which of several things it is about (a reward component); '' where there is only the run.
    """

    text: str
    subject: str = ""


class Condition(Stateful, Protocol):
    """What is wrong after an update. Called once for every update, in order; what it remembers of them is its state."""

    def __call__(self, observation: Observation) -> Sequence[Finding] | None:
        """The findings, at most one a subject; empty where nothing is wrong, None while too little is known to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Generic[Measured]):
    """Measurements, oldest first.

    Attributes:
        last: of the last updates.
        first: of the first updates of the run. As many, unless a resumed run has another `Windowed.length` than before.
    """

    last: tuple[Measured, ...]
    first: tuple[Measured, ...]


@dataclass(slots=True, kw_only=True)
class Windowed(Generic[Measured]):
    """A condition on the last updates that measured something; it says nothing until there are `length` of them.

    Attributes:
        length: updates that `judge` looks at.
        measure: what of an update's metrics counts, as JSON knows it; None if they lack it, and then the update is not part of
            the window.
        judge: the findings in the last `length` measurements, which may be compared with the first ones.
    """

    length: int
    measure: Callable[[Mapping[str, float]], Measured | None]
    judge: Callable[[Window[Measured]], Sequence[Finding]]
    _first: tuple[Measured, ...] = ()
    _last: tuple[Measured, ...] = ()

    def __call__(self, observation: Observation) -> Sequence[Finding] | None:
        value = self.measure(observation.metrics)
        if value is None:  # nothing to judge in this update, whatever the window holds
            return ()
        self._last = (*self._last, value)[-self.length :]
        if len(self._last) < self.length:
            return None
        self._first = self._first or self._last
        return self.judge(Window(last=self._last, first=self._first))

    def state_dict(self) -> dict[str, Any]:
        """The measurements that are kept."""
        return {"first": list(self._first), "last": list(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, also from that of another length."""
        self._first, self._last = tuple(state["first"]), tuple(state["last"])


class Evidence(Protocol):
    """Collects what shows a finding, once when its alarm is raised."""

    def __call__(self, finding: Finding, observation: Observation) -> str:
        """Where it was put, relative to the run's folder.

        Raises:
            CacheRLError, OSError: it could not be had; the alarm is raised without it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A named condition.

    Attributes:
        name: part of the metric's name `alarm/<name>`.
        remedy: a sentence that says what to look at or to change.
        evidence: None when the figures say it all.
    """

    name: str
    condition: Condition
    remedy: str
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmEvent:
    """An alarm that was just raised; evidence as `Evidence` returns it, '' without."""

    name: str
    subject: str
    update: int
    text: str
    remedy: str
    evidence: str = ""

    def __str__(self) -> str:
        shown = f" See {self.evidence}." if self.evidence else ""
        return f"ALARM {self.name} at update {self.update}: {self.text} {self.remedy}{shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One update judged: the metrics 'alarm/*' of every alarm, and the alarms that it raised."""

    metrics: Mapping[str, float]
    events: tuple[AlarmEvent, ...] = ()


@dataclass(slots=True)
class AlarmBoard:
    """All alarms of a run.

    Args:
        log: file to which every alarm that is raised is appended as a JSON object; None keeps none.

    Raises:
        ValueError: two alarms have the same name.
    """

    alarms: Sequence[Alarm]
    log: Path | None = None
    _raised: dict[tuple[str, str], int] = field(default_factory=dict)  # (name, subject) -> updates since last found
    _known: dict[str, None] = field(default_factory=dict)  # metrics of subjects so far; they fall back to 0

    def __post_init__(self) -> None:
        names = [alarm.name for alarm in self.alarms]
        if len(set(names)) != len(names):
            raise ValueError(f"alarms must have distinct names, got {names}")

    def check(self, observation: Observation) -> Verdict:
        """Judge an update; to be called for every one, in order. Blocks while evidence is collected.

        An alarm whose condition cannot say stays as it is: after a resume with a longer window, until that is full.
        """
        judged = [(alarm, alarm.condition(observation)) for alarm in self.alarms]
        found = {(alarm.name, finding.subject): (alarm, finding) for alarm, findings in judged for finding in findings or ()}
        silent = {alarm.name for alarm, findings in judged if findings is None}
        fresh = [pair for key, pair in found.items() if key not in self._raised]
        without = {key: since + (key[0] not in silent) for key, since in self._raised.items() if key not in found}
        self._raised = {key: since for key, since in without.items() if since < _CLEAR_AFTER} | dict.fromkeys(found, 0)
        events = tuple(_event(alarm, finding, observation) for alarm, finding in fresh)
        if self.log is not None and events:
            with self.log.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(asdict(event), ensure_ascii=False) + "\n" for event in events)
        return Verdict(metrics=self._metrics(), events=events)

    def state_dict(self) -> dict[str, Any]:
        """What is raised, what has ever been, and what every condition remembers: a resumed run judges as if it went on."""
        return {
            "raised": [[*key, since] for key, since in self._raised.items()],
            "known": list(self._known),
            "conditions": {alarm.name: alarm.condition.state_dict() for alarm in self.alarms},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over from an earlier session; alarms that it did not have begin at the beginning."""
        self._raised = {(name, subject): since for name, subject, since in state["raised"]}
        self._known = dict.fromkeys(state["known"])
        remembered = state.get("conditions", {})
        for alarm in self.alarms:
            if alarm.name in remembered:
                alarm.condition.load_state_dict(remembered[alarm.name])

    def _metrics(self) -> dict[str, float]:
        raised = {name for name, _ in self._raised}
        subjects = {f"alarm/{name}/{subject}": 1.0 for name, subject in self._raised if subject}
        self._known |= dict.fromkeys(subjects)
        values = {f"alarm/{alarm.name}": float(alarm.name in raised) for alarm in self.alarms}
        return values | dict.fromkeys(self._known, 0.0) | subjects


def _event(alarm: Alarm, finding: Finding, observation: Observation) -> AlarmEvent:
    evidence = ""
    if alarm.evidence is not None:
        try:
            evidence = alarm.evidence(finding, observation)
        except (CacheRLError, OSError):
            logger.warning("the evidence of alarm %s could not be collected", alarm.name, exc_info=True)
    return AlarmEvent(
        name=alarm.name,
        subject=finding.subject,
        update=observation.update,
        text=finding.text,
        remedy=alarm.remedy,
        evidence=evidence,
    )
