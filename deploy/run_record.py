"""RunRecord: what a run left behind in its folder, read back for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from deploy.alarms import ALARMS_FILE, AlarmEvent

METRICS_FILE = "metrics.jsonl"
CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"

#: Keys of a line of metrics that are not metrics.
_NOT_METRICS = frozenset({"step", "time"})


def run_file(folder: Path, name: str) -> Path:
    """A file that every run has in its folder.

    Raises:
        ConfigError: `folder` lacks it, so it is not that of a run.
    """
    file = folder / name
    if not file.is_file():
        raise ConfigError(f"{folder} is not the folder of a run (no {name} in it)")
    return file


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over a run.

    Attributes:
        name: as declared in `cacherl.metrics`.
        steps: optimizer step of each value, in the order of recording.
        values: as long as `steps`; None was not finite.

    Raises:
        ValueError: the lengths differ.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values):
            raise ValueError(f"series {self.name}: {len(self.steps)} steps, {len(self.values)} values")

    @property
    def known(self) -> tuple[float, ...]:
        """The finite values."""
        return tuple(value for value in self.values if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of a run's config, dotted; `default` is None for a key that this version does not know."""

    key: str
    value: str
    default: str | None

    @property
    def changed(self) -> bool:
        """The run does not use the default."""
        return self.value != self.default


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run's folder, read.

    Attributes:
        name: of the folder.
        summary: what the run said at its end; empty when it did not get that far.
        series: metric name -> its values, in the order in which the names first appear.
        settings: the whole config; empty when the folder holds none.
        alarms: every alarm that was raised, in order.
    """

    name: str
    summary: Mapping[str, Any]
    series: Mapping[str, Series]
    settings: tuple[Setting, ...]
    alarms: tuple[AlarmEvent, ...] = ()

    @property
    def status(self) -> str:
        """The run's own word, or 'unfinished' for a run that ended without one."""
        return str(self.summary.get("status", "unfinished"))

    def points(self, metric: str) -> dict[int, float]:
        """Optimizer step -> finite value of a metric, by rising steps; empty if it was never recorded."""
        series = self.series.get(metric)
        recorded = () if series is None else zip(series.steps, series.values, strict=True)
        return dict(sorted((step, value) for step, value in recorded if value is not None))


def read_run(run_dir: Path) -> RunRecord:
    """Read whatever of a run is there; a run that was killed may lack any of the files.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not run_dir.is_dir():
        raise FileNotFoundError(f"no run folder at {run_dir}")
    summary, config = run_dir / SUMMARY_FILE, run_dir / CONFIG_FILE
    return RunRecord(
        name=run_dir.resolve().name,
        summary=json.loads(summary.read_text("utf-8")) if summary.is_file() else {},
        series=_series(run_dir / METRICS_FILE),
        settings=_settings(config) if config.is_file() else (),
        alarms=tuple(AlarmEvent(**record) for record in _records(run_dir / ALARMS_FILE)),
    )


def _series(path: Path) -> dict[str, Series]:
    columns: dict[str, tuple[list[int], list[float | None]]] = {}
    for record in _records(path):
        for name in record.keys() - _NOT_METRICS:
            steps, values = columns.setdefault(name, ([], []))
            steps.append(record["step"])
            values.append(record[name])
    return {
        name: Series(name=name, steps=tuple(steps), values=tuple(values)) for name, (steps, values) in sorted(columns.items())
    }


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a run that was killed while it wrote


def _settings(path: Path) -> tuple[Setting, ...]:
    defaults = dict(_flatten(RunConfig().model_dump(mode="json")))
    tree = OmegaConf.to_container(OmegaConf.load(path))
    return tuple(Setting(key=key, value=value, default=defaults.get(key)) for key, value in _flatten(tree))


def _flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(tree).strip('"')
