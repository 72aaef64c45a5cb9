"""Where a trial's evaluations come from: a training run in a process of its own, or a user's objective function."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from cacherl.config import RunConfig
from deploy.run_record import METRICS_FILE, SUMMARY_FILE

#: `cacherl` in a process that ends in order when its parent is gone.
_TRAIN_WITH_PARENT = """
import signal, sys
from cacherl.process import die_with_parent
die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
from deploy.cli import main
main()
"""
_POLL_S = 0.25
#: Seconds that a run gets to end in order.
_STOP_S = 60.0
#: Characters of a failed run's output that its error repeats.
_SHOWN = 600


class TrialFailed(Exception):
    """A trial came to no result; the message says why."""


class SearchStopping(Exception):
    """The search is ending; the trial is left unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A trial's metric after an optimizer step."""

    update: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One `cacherl train` whose metrics are followed while it goes on.

    Attributes:
        overrides: complete, `run.dir` and `run.name` included.
        run_dir: the folder that these name.
        metric: name of the metric that is reported.
        output: file for what the process prints.
        address: of the Ray cluster.
        folder: that relative paths of the config are meant from.
        stopping: the search is ending once this file exists.
    """

    config: Path | None
    overrides: Sequence[str]
    run_dir: Path
    metric: str
    output: Path
    address: str
    folder: Path
    stopping: Path

    def evaluations(self) -> Generator[Evaluation]:
        """Each value of the metric as soon as it is recorded; closing the generator ends the run in order.

        Raises:
            TrialFailed: the run failed, or never recorded the metric.
            SearchStopping: before it was through.
        """
        seen = 0
        metrics = _MetricsFile(self.run_dir / METRICS_FILE, self.metric)
        with self._process() as process:
            while True:
                ended = process.poll() is not None  # before the last read, so that nothing is missed
                for evaluation in metrics.read():
                    seen += 1
                    yield evaluation
                if ended:
                    break
                if self.stopping.exists():
                    raise SearchStopping
                time.sleep(_POLL_S)
        if process.returncode:
            raise TrialFailed(self._error(process.returncode))
        if not seen:
            raise TrialFailed(f"the run recorded no finite {self.metric}")

    @contextmanager
    def _process(self) -> Iterator[subprocess.Popen[bytes]]:
        config = ["--config", str(self.config)] if self.config else []
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _TRAIN_WITH_PARENT, str(os.getpid()), "train", *config, *self.overrides],
                cwd=self.folder,
                env={**os.environ, "RAY_ADDRESS": self.address},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            _end(process)

    def _error(self, status: int) -> str:
        """What the run says of its failure, else the end of what it printed."""
        summary = self.run_dir / SUMMARY_FILE
        if summary.is_file() and (error := json.loads(summary.read_text("utf-8")).get("error")):
            return str(error)
        printed = self.output.read_text("utf-8", errors="replace").strip()
        return f"exit status {status}: {printed[-_SHOWN:]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, on which a run closes its engines and servers; SIGKILL if that takes too long."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _MetricsFile:
    """Reads what was added to a run's metrics since the last time."""

    def __init__(self, path: Path, metric: str) -> None:
        self._path = path
        self._metric = metric
        self._position = 0

    def read(self) -> list[Evaluation]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        records = map(json.loads, whole.splitlines())
        return [
            Evaluation(update=record["step"], value=record[self._metric])
            for record in records
            if record.get(self._metric) is not None
        ]


def objective_evaluations(function: Callable[[RunConfig], Any], config: RunConfig) -> Generator[Evaluation]:
    """The values of an objective: one number, as of the last update, or an iterator of them, one an update from 1 on.

    Raises:
        TrialFailed: it raised, gave no value, or one that is not a finite number.
    """
    seen = False
    try:
        result = function(config)
        single = not isinstance(result, Iterator)
        for update, value in enumerate([result] if single else result, start=config.run.updates if single else 1):
            if not isinstance(value, Real) or not math.isfinite(value):
                raise TrialFailed(f"the objective gave {value!r}, not a finite number")
            seen = True
            yield Evaluation(update=update, value=float(value))
    except TrialFailed:
        raise
    except Exception as error:
        raise TrialFailed(f"the objective raised {error!r}") from error
    if not seen:
        raise TrialFailed("the objective gave no value")
