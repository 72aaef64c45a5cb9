"""Recorder: Ray Tune's events, into the ledger and onto the console."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from ray import tune
from rich.console import Console

from deploy.tuning.actor import ERROR, POINT, STATUS, UPDATE, VALUE, TrialSpec
from deploy.tuning.ledger import ENDED, Ledger
from deploy.tuning.results import shown


class Recorder(tune.Callback):
    """Runs in the driver. Once the search is stopping, what still happens to a trial is not its end."""

    def __init__(self, spec: TrialSpec, ledger: Ledger, console: Console) -> None:
        self._spec = spec
        self._ledger = ledger
        self._console = console
        self._running: set[str] = set()

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        return tune.Callback, ()  # Tune pickles its callbacks for a resume of its own, which is not used

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        point = self._spec.search.space.decode(trial.config[POINT])
        self._running.add(trial.trial_id)
        if self._spec.stopping.exists():
            return
        self._ledger.started(trial.trial_id, point)
        self._say(trial, "started", ", ".join(f"{key}={shown(value)}" for key, value in point.items()))

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any) -> None:
        if STATUS in result:
            if result[STATUS] in ENDED:
                self._end(trial, result[STATUS], result.get(ERROR, ""))
            self._running.discard(trial.trial_id)
            if self._spec.stopping.exists() and not self._running:
                os.kill(os.getpid(), signal.SIGUSR1)  # Tune's own signal for 'enough'
            return
        self._ledger.evaluated(
            trial.trial_id, update=result[UPDATE], value=result[VALUE], seconds=round(result["time_total_s"], 1)
        )
        self._say(trial, f"update {result[UPDATE]}", f"{self._spec.search.label} {shown(result[VALUE])}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.trial_id in self._running and not self._spec.stopping.exists():
            self._end(trial, "stopped", "")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if not self._spec.stopping.exists():
            self._end(trial, "failed", "the trial's process died")

    def _end(self, trial: Any, status: str, error: str) -> None:
        self._running.discard(trial.trial_id)
        self._ledger.ended(trial.trial_id, status, error)
        self._say(trial, status, error)

    def _say(self, trial: Any, what: str, detail: str) -> None:
        line = f"trial {trial.trial_id} | {what}" + (f" | {detail}" if detail else "")
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
