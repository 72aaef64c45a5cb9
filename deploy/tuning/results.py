"""What a search found: its table, its JSON and its page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from deploy.run_view import duration
from deploy.tuning.ledger import Trial
from deploy.tuning.settings import Search
from deploy.tuning.space import as_overrides

JSON_FILE = "results.json"


def ranked(trials: Sequence[Trial], mode: str) -> list[Trial]:
    """The trials, best first: by their last value, those without one at the end. A trial that was interrupted is left out
    once its point was tried again."""
    ended = [trial.point for trial in trials if trial.status != "unfinished"]
    shown = [trial for trial in trials if trial.status != "unfinished" or trial.point not in ended]
    sign = -1.0 if mode == "max" else 1.0
    return sorted(shown, key=lambda trial: (trial.value is None, sign * (trial.value or 0.0)))


def best(trials: Sequence[Trial], mode: str) -> Trial | None:
    """The best trial that ran to its end; None when none did."""
    finished = (trial for trial in ranked(trials, mode) if trial.status == "finished" and trial.value is not None)
    return next(finished, None)


def train_command(search: Search, trial: Trial) -> str:
    """How to train with a trial's values again, for a shell."""
    config = ["--config", str(search.config)] if search.config else []
    return shlex.join(["cacherl", "train", *config, *search.overrides, *as_overrides(trial.point)])


def table(search: Search, trials: Sequence[Trial]) -> Table:
    """All trials, the best first; one column an axis."""
    keys = tuple(search.space.axes)
    top = best(trials, search.settings.mode)
    view = Table("trial", *keys, "first", search.label, "update", "status", "time")
    for trial in ranked(trials, search.settings.mode):
        view.add_row(
            trial.trial_id,
            *(shown(trial.point[key]) for key in keys),
            shown(trial.values[0]) if trial.values else "-",
            shown(trial.value) if trial.value is not None else "-",
            str(trial.updates[-1]) if trial.updates else "-",
            f"{trial.status}: {trial.error.splitlines()[0]}" if trial.error else trial.status,
            duration(trial.seconds),
            style="bold" if trial is top else None,
        )
    return view


def write_json(search: Search, trials: Sequence[Trial]) -> Path:
    """Write `results.json` into the search's folder; its path."""
    settings = search.settings
    top = best(trials, settings.mode)
    content: dict[str, Any] = {
        "metric": search.label,
        "mode": settings.mode,
        "search": settings.search,
        "best": top and {"trial_id": top.trial_id, "value": top.value, "point": top.point},
        "trials": [{**asdict(trial), "value": trial.value} for trial in ranked(trials, settings.mode)],
    }
    path = search.folder / JSON_FILE
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def shown(value: Any) -> str:
    """A value of a point or a metric, for people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
