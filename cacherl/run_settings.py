"""The sections about the run as a whole: name and end, weights, evaluation, checkpoints, metrics, cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from cacherl.section import Section


class RunSection(Section):
    """What the run is called, where it writes and when it ends."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="of its folder within dir")
    seed: int = Field(0, ge=0, lt=2**32, description="of tasks, their worlds, the noise of tools and initial weights")
    dir: Path = Path("runs")
    if_exists: Literal["error", "replace", "resume"] = Field(
        "error", description="what to do with an earlier run of the same name; resume begins one if there is none"
    )
    updates: int = Field(100, ge=0, description="optimizer steps after the warm start")
    stop_at_success: float | None = Field(None, gt=0, le=1, description="end early once held-out success reaches this")
    deadline_s: float = Field(86_400.0, gt=0, description="seconds after which the run ends as failed")


class WeightsSection(Section):
    """How new weights reach the engines."""

    publish_every: int = Field(1, ge=1, description="optimizer steps between publishes")
    deadline_s: float = Field(120.0, gt=0, description="for every engine to acknowledge a version")


class EvalSection(Section):
    """Greedy evaluation on held-out tasks."""

    tasks: int = Field(200, ge=1, description="held-out tasks, the same ones every time")
    every: int = Field(10, ge=1, description="updates between evaluations; also at the start and the end")
    deadline_s: float = Field(600.0, gt=0, description="seconds of one evaluation")


class CheckpointSection(Section):
    """What a killed run can be resumed from."""

    every: int = Field(20, ge=0, description="updates between checkpoints, and one after the last; 0: none at all")
    keep_last: int = Field(2, ge=1, description="newest checkpoints kept")
    keep_best: int = Field(
        1, ge=0, description="checkpoints of the highest held-out success kept besides; a new best one is saved at once"
    )
    asynchronous: bool = Field(True, description="write in the background, from a copy in memory, while updates go on")
    dir: Path | None = Field(None, description="<dir>/<run.name> holds them, shared by all ranks; null: the run's folder")

    @model_validator(mode="after")
    def _all_used(self) -> CheckpointSection:
        if not self.every:
            self.refuse_idle(("keep_last", "keep_best", "asynchronous"), "checkpoint.every above 0")
        return self


class MetricsSection(Section):
    """Where metrics go besides the console."""

    jsonl: bool = Field(True, description="metrics.jsonl of the run's folder, which the report is made of")
    tensorboard: bool = Field(True, description="tensorboard/ of the run's folder")
    ray: bool = Field(True, description="export through ray.util.metrics")


class RayClusterSection(Section):
    """Which Ray cluster to run on."""

    address: str | None = Field(None, description="null: the job's cluster, else a local one started with the run")
    dashboard: bool = Field(True, description="of a local cluster")
    autoscaling: bool = Field(False, description="the cluster grows on demand: wait instead of refusing a larger run")
