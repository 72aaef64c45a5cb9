"""Ledger: what became of every trial, one JSON object a line; all that a search needs to be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

#: 'finished' ran to its end; 'stopped' was ended early because others did better; 'failed' ended with an error;
#: 'unfinished' was running when the search ended.
ENDED = ("finished", "stopped", "failed")


@dataclass(slots=True, kw_only=True)
class Trial:
    """One trial.

    Attributes:
        trial_id: also the name of its run.
        point: config key -> value.
        updates, values: optimizer step and metric of every evaluation so far.
        seconds: until the last evaluation.
        status: one of `ENDED` or 'unfinished'.
    """

    trial_id: str
    point: Mapping[str, Any]
    updates: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: float = 0.0
    status: str = "unfinished"
    error: str = ""

    @property
    def value(self) -> float | None:
        """What the trial is judged by: its last evaluation; None without any."""
        return self.values[-1] if self.values else None


class Ledger:
    """The file; a trial is written as it happens, so that nothing is lost with the process that writes.

    Args:
        path: appended to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def started(self, trial_id: str, point: Mapping[str, Any]) -> None:
        self._write({"event": "started", "trial": trial_id, "point": dict(point)})

    def evaluated(self, trial_id: str, *, update: int, value: float, seconds: float) -> None:
        self._write({"event": "evaluated", "trial": trial_id, "update": update, "value": value, "seconds": seconds})

    def ended(self, trial_id: str, status: str, error: str = "") -> None:
        """`status` is one of `ENDED`."""
        self._write({"event": "ended", "trial": trial_id, "status": status, "error": error})

    def trials(self) -> list[Trial]:
        """All trials so far, in the order of their start."""
        trials: dict[str, Trial] = {}
        for record in self._records():
            name = record["trial"]
            if record["event"] == "started":
                trials[name] = Trial(trial_id=name, point=record["point"])
            elif record["event"] == "evaluated":
                trials[name].updates.append(record["update"])
                trials[name].values.append(record["value"])
                trials[name].seconds = record["seconds"]
            else:
                trials[name].status, trials[name].error = record["status"], record["error"]
        return list(trials.values())

    def _write(self, record: Mapping[str, Any]) -> None:
        with self._path.open("a+b") as lines:
            lines.write(b"\n" * _torn(lines) + json.dumps(record).encode() + b"\n")

    def _records(self) -> Iterator[dict[str, Any]]:
        if not self._path.is_file():
            return
        for line in self._path.read_text("utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a search that was killed while it wrote


def _torn(file: IO[bytes]) -> bool:
    """The file's last line has no end, so that the next record would be lost with it."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
