"""TrialActor: Ray Tune's side of a trial."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from cacherl.errors import ConfigError
from deploy.tuning.evaluations import (
    Evaluation,
    SearchStopping,
    TrainingRun,
    TrialFailed,
    objective_evaluations,
)
from deploy.tuning.settings import Search, load_objective
from deploy.tuning.space import as_overrides

#: Key of a Tune config that holds the point's codes, and those of a result.
POINT, VALUE, UPDATE, STATUS, ERROR = "point", "value", "update", "status", "error"
#: The update again, as early stopping sees it: absent from the last one, since a run that is through must not be stopped.
RUNG = "rung"
#: Folders of a search, and the file whose presence ends its trials.
RUNS, LOGS, STOPPING = "runs", "logs", "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """What every trial is told: the search, the Ray cluster's address for its runs, and the folder to start them in."""

    search: Search
    address: str
    folder: Path

    @property
    def stopping(self) -> Path:
        """The search is ending once this file exists."""
        return self.search.folder / STOPPING

    def evaluations(self, codes: dict[str, Any], trial_id: str) -> Generator[Evaluation]:
        """Run a trial.

        Raises:
            TrialFailed, SearchStopping: see `TrainingRun` and `objective_evaluations`.
        """
        search = self.search
        point = search.space.decode(codes)
        place = {"run.name": trial_id, "run.dir": str(search.folder / RUNS), "metrics.jsonl": True}
        names = as_overrides(place)  # quoted: YAML takes 55437_00000 for a number
        try:
            if search.load({}) != search.base:
                raise TrialFailed(f"{search.config} was changed since the search began")
            config = search.load(point, *names)
        except ConfigError as error:
            raise TrialFailed(str(error)) from None
        if search.objective is not None:
            yield from objective_evaluations(load_objective(search.objective), config)
            return
        run = TrainingRun(
            config=search.config,
            overrides=search.overrides_of(point, *names),
            run_dir=config.run_dir,
            metric=search.settings.metric,
            output=search.folder / LOGS / f"{trial_id}.log",
            address=self.address,
            folder=self.folder,
            stopping=self.stopping,
        )
        yield from run.evaluations()


class TrialActor(tune.Trainable):
    """Reports one evaluation a step; then the last one again, with how the trial ended.

    A trial that fails is a result like any other, only without a value, so that it does not end the search.
    """

    def setup(self, config: dict[str, Any], spec: TrialSpec) -> None:
        self._spec = spec
        self._begin(config)

    def _begin(self, config: dict[str, Any]) -> None:
        self._evaluations = self._spec.evaluations(config[POINT], self.trial_id)
        self._last: dict[str, Any] = {}

    def step(self) -> dict[str, Any]:
        try:
            if self._spec.stopping.exists():
                raise SearchStopping
            evaluation = next(self._evaluations)
        except StopIteration:
            return {**self._last, "done": True, STATUS: "finished"}
        except TrialFailed as failure:
            return {"done": True, STATUS: "failed", ERROR: str(failure)}
        except SearchStopping:
            self._evaluations.close()
            return {"done": True, STATUS: "unfinished"}
        self._last = {VALUE: evaluation.value, UPDATE: evaluation.update}
        through = evaluation.update >= self._spec.search.base.run.updates
        return self._last | ({} if through else {RUNG: evaluation.update})

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The process takes the next trial."""
        self._evaluations.close()
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        self._evaluations.close()
