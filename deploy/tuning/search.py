"""Running a search with Ray Tune, from the first trial or from where it was interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from rich.console import Console

from deploy.cluster import cluster
from deploy.tuning.capacity import concurrency, largest
from deploy.tuning.ledger import Ledger, Trial
from deploy.tuning.settings import Search

LEDGER_FILE = "trials.jsonl"
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the ledger and the runs' own files are the record
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial has no value
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # see `_signals`
    "TUNE_MAX_PENDING_TRIALS_PG": "1",
}


def run_search(search: Search, console: Console) -> tuple[list[Trial], bool]:
    """All trials of the search, those of its earlier part included, and whether it came to its end.

    Trials that the ledger has as ended are not run again; one that was interrupted is, from its start.

    Raises:
        ConfigError: the cluster does not hold a trial, or not as many at a time as asked for.
    """
    os.environ.update(_ENVIRONMENT)
    from deploy.tuning.actor import STOPPING

    ledger = Ledger(search.folder / LEDGER_FILE)
    (search.folder / STOPPING).unlink(missing_ok=True)
    with cluster(largest(search), namespace=f"tune-{search.folder.name}"):
        _fit(search, ledger, console)
    interrupted = (search.folder / STOPPING).exists()
    (search.folder / STOPPING).unlink(missing_ok=True)
    return ledger.trials(), not interrupted


def _fit(search: Search, ledger: Ledger, console: Console) -> None:
    import ray
    from ray import tune

    from deploy.tuning.actor import TrialActor, TrialSpec
    from deploy.tuning.recorder import Recorder

    at_a_time = concurrency(search, ray.cluster_resources())
    past = ledger.trials()
    algorithm = make_algorithm(search, past)
    if algorithm is None:
        return
    spec = TrialSpec(search=search, address=ray.get_runtime_context().gcs_address, folder=Path.cwd())
    here = {f"node:{ray.util.get_node_ip_address()}": 0.001}  # runs are started where the search was
    actor = tune.with_resources(tune.with_parameters(TrialActor, spec=spec), {"CPU": float(bool(search.objective)), **here})
    with tempfile.TemporaryDirectory(prefix="cacherl-tune-") as storage, _signals(spec.stopping):
        tune.Tuner(
            actor,
            param_space=algorithm["param_space"],
            tune_config=tune.TuneConfig(
                search_alg=algorithm["search_alg"],
                num_samples=algorithm["num_samples"],
                scheduler=make_scheduler(search, past),
                max_concurrent_trials=at_a_time,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=storage,
                verbose=0,
                callbacks=[Recorder(spec, ledger, console)],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()


def make_algorithm(search: Search, past: Sequence[Trial]) -> dict[str, Any] | None:
    """What Tune is to try, given what was tried; None when nothing is left."""
    ended = [trial for trial in past if trial.status != "unfinished"]
    return _grid(search, ended) if search.settings.search == "grid" else _bayes(search, ended, past)


def _grid(search: Search, ended: Sequence[Trial]) -> dict[str, Any] | None:
    from ray import tune

    from deploy.tuning.actor import POINT

    done = [dict(trial.point) for trial in ended]
    left = [search.space.encode(point) for point in search.space.grid() if point not in done]
    return {"search_alg": None, "num_samples": 1, "param_space": {POINT: tune.grid_search(left)}} if left else None


def _bayes(search: Search, ended: Sequence[Trial], past: Sequence[Trial]) -> dict[str, Any] | None:
    """Optuna is told of the trials that ended, and is to begin with those that were interrupted."""
    from ray.tune.search.optuna import OptunaSearch

    from deploy.tuning.actor import POINT, VALUE

    settings = search.settings
    left = settings.trials - len(ended)
    if left <= 0:
        return None
    interrupted = [_named(search, trial) for trial in past if trial.status == "unfinished"]
    algorithm = OptunaSearch(
        space={f"{POINT}/{key}": axis.distribution() for key, axis in search.space.axes.items()},
        metric=VALUE,
        mode=settings.mode,
        seed=settings.seed + len(ended),  # or the random start of the earlier part would be drawn again
        points_to_evaluate=interrupted[:left],
    )
    for trial in ended:
        failed = trial.status == "failed" or trial.value is None
        algorithm.add_evaluated_point(_named(search, trial), trial.value, error=failed)
    return {"search_alg": algorithm, "num_samples": left, "param_space": None}


def _named(search: Search, trial: Trial) -> dict[str, Any]:
    from deploy.tuning.actor import POINT

    return {f"{POINT}/{key}": code for key, code in search.space.encode(trial.point).items()}


def make_scheduler(search: Search, past: Sequence[Trial]) -> Any:
    """ASHA, told of the evaluations so far; None: every trial runs to its end."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    from deploy.tuning.actor import RUNG, VALUE

    stopping = search.settings.early_stopping
    if not stopping.enabled:
        return None
    scheduler = AsyncHyperBandScheduler(
        time_attr=RUNG,
        metric=VALUE,
        mode=search.settings.mode,
        max_t=search.base.run.updates,
        grace_period=search.min_updates,
        reduction_factor=stopping.reduction,
    )
    for trial in past:
        if trial.status == "unfinished":
            continue
        known = SimpleNamespace(trial_id=trial.trial_id)
        scheduler.on_trial_add(None, known)
        for update, value in zip(trial.updates, trial.values, strict=True):
            if update < search.base.run.updates:
                scheduler.on_trial_result(None, known, {RUNG: update, VALUE: value})
    return scheduler


@contextlib.contextmanager
def _signals(stopping: Path) -> Iterator[None]:
    """On Ctrl-C and SIGTERM the trials end their runs in order, since they watch for the file `stopping`; when the last one
    has, the recorder tells Tune that it is enough, by SIGUSR1. A second Ctrl-C does so at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.exists():
            os.kill(os.getpid(), signal.SIGUSR1)
        stopping.touch()

    def not_yet(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt  # until Tune has taken over its signal, there is no trial to end

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGUSR1: not_yet}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
