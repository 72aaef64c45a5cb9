"""Launch: start everything that a run consists of, run its loop, and take all of it down again, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from actors.pool import ActorPool
from actors.worker import WorkerSpec
from cacherl.config import RunConfig
from cacherl.errors import CacheRLError, DeadlineExceeded
from cacherl.metrics import JsonlSink, MetricSink, MetricWriter, TensorBoardSink
from deploy.alarms import ALARMS_FILE, AlarmBoard
from deploy.cluster import cluster, reserve
from deploy.loop import Loop
from deploy.monitor import Monitor
from deploy.panel import Panel
from deploy.priority import FreshPriority
from deploy.ray_metrics import RayMetricSink
from deploy.report import write_report
from deploy.reward_hacking import reward_hacking_alarm
from deploy.run_dir import RunDirectory
from deploy.run_view import RunView
from deploy.tasks import TaskStream, held_out_tasks
from deploy.terminal import own_terminal
from deploy.warm_start import WarmStart, base_model
from envs.base import TaskSource
from envs.registry import load_source
from learner.group import LearnerGroup
from replay_service.server import ReplayServer
from replay_service.store import Replay

logger = logging.getLogger(__name__)

#: Seconds between two lines of progress where there is no terminal.
_LINE_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run ended; also written to summary.json.

    Attributes:
        status: 'succeeded', 'interrupted' or 'failed'.
        held_out_start, held_out_end: greedy held-out success at the first and the last evaluation; None without one.
        elapsed_s: seconds; phases: seconds in each phase.
    """

    name: str
    status: str
    seed: int
    updates: int = 0
    episodes: int = 0
    held_out_start: float | None = None
    held_out_end: float | None = None
    elapsed_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    error: str | None = None


def run_training(config: RunConfig) -> tuple[Summary, Path]:
    """Run a training run from start to end; returns its summary and its report.

    Raises:
        ConfigError: the settings cannot work; nothing was started.
    """
    source = load_source(config.env)  # refuses bad settings before an earlier run is replaced, as does the next line
    FreshPriority(config)
    directory = RunDirectory(config)
    _log_to(directory.logs / "driver.log")
    with own_terminal(directory.logs / "driver.log") as console:
        summary = _watched(config, source, directory, console)
    directory.write_json("summary.json", asdict(summary))
    return summary, write_report(directory.path)


def _watched(config: RunConfig, source: TaskSource, directory: RunDirectory, console: Console) -> Summary:
    """The run under a panel; whatever happens to it ends in a summary."""
    with Panel(console, _LINE_INTERVAL_S) as panel, MetricWriter(_sinks(config, directory)) as writer:
        monitor = Monitor(
            config=config,
            writer=writer,
            panel=panel,
            view=RunView(
                name=config.run.name,
                phase="starting",
                elapsed_s=0.0,
                update=0,
                updates=config.run.updates,
                actors_total=config.actors.count,
                learner_ranks=config.learner.workers,
            ),
        )
        status, error = "succeeded", None
        try:
            asyncio.run(_supervised(Launch(config=config, directory=directory, monitor=monitor, source=source)))
        except (asyncio.CancelledError, KeyboardInterrupt):
            status, error = "interrupted", "stopped by a signal"
        except CacheRLError as failure:
            logger.exception("the run failed")
            status, error = "failed", str(failure)
        except Exception as failure:  # a fault of a library or of ours: the run still ends with its summary
            logger.exception("the run failed")
            status, error = "failed", f"{type(failure).__name__}: {failure} (see logs/driver.log)"
        finally:
            monitor.close()
    held_out = monitor.held_out
    return Summary(
        name=config.run.name,
        status=status,
        seed=config.run.seed,
        updates=monitor.view.update,
        episodes=monitor.episodes,
        held_out_start=held_out[0] if held_out else None,
        held_out_end=held_out[-1] if held_out else None,
        elapsed_s=monitor.elapsed_s,
        phases=monitor.phases,
        error=error,
    )


async def _supervised(launch: Launch) -> None:
    """The run under its deadline, ended in order by Ctrl-C and by SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    deadline_s = launch.config.run.deadline_s
    try:
        async with asyncio.timeout(deadline_s) as limit:
            await launch.run(on_connected=lambda: asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel))
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded("the run to end (run.deadline_s)", deadline_s) from None


@dataclass(slots=True, kw_only=True)
class Launch:
    """The composition root of one run."""

    config: RunConfig
    directory: RunDirectory
    monitor: Monitor
    source: TaskSource

    async def run(self, on_connected: Callable[[], None]) -> None:
        """Bring everything up, train, and tear down in reverse order."""
        config, directory, monitor = self.config, self.directory, self.monitor
        run_id = f"{config.run.name}-{secrets.token_hex(4)}"
        async with AsyncExitStack() as stack:
            monitor.enter("starting", "Ray")
            dashboard = stack.enter_context(cluster(config, namespace=run_id))
            on_connected()
            monitor.show(waiting_for="the replay service")
            if dashboard:
                monitor.note(f"Ray dashboard at http://{dashboard}")
            url = config.replay.url or stack.enter_context(ReplayServer(directory.replay)).url
            namespace = config.replay.namespace or run_id
            replay = stack.enter_context(contextlib.closing(Replay(url, namespace, config.replay)))
            await asyncio.to_thread(replay.check)
            monitor.show(waiting_for="resources of the cluster")
            placement = await reserve(config)
            stack.callback(placement.release)

            base = await asyncio.to_thread(base_model, config, self.source, directory.model)
            warm_start = WarmStart(config, self.source, base)
            monitor.show(waiting_for="the learner to load the model")
            learner = LearnerGroup(
                config,
                model=warm_start.model,
                replay_url=url,
                replay_namespace=namespace,
                log_dir=directory.logs,
                ray_namespace=run_id,
                placement=placement.learner,
            )
            stack.push_async_callback(learner.close)
            await learner.start()
            if warm_start.needed:
                await self._warm_start(warm_start, learner)
            elif config.warm_start.updates:
                monitor.note("warm start from the cache")

            pool = ActorPool(
                self._worker_spec(warm_start.model, url, namespace),
                namespace=run_id,
                placement=placement.actors,
                on_restart=monitor.note,
            )
            stack.push_async_callback(pool.close)
            monitor.enter("starting engines", f"{config.actors.count} vLLM engines")
            await pool.start()
            monitor.show(actors_alive=pool.alive)
            loop = Loop(
                config=config,
                pool=pool,
                learner=learner,
                replay=replay,
                stream=TaskStream(self.source, config, prefix=run_id),
                held_out=held_out_tasks(self.source, config),
                monitor=monitor,
                alarms=self._alarms(replay),
            )
            await loop.run()
            monitor.enter("saving", "the trained model")
            await learner.save(directory.final_model)
            monitor.enter("stopping", "engines, learner and servers to stop")

    async def _warm_start(self, warm_start: WarmStart, learner: LearnerGroup) -> None:
        updates = self.config.warm_start.updates
        self.monitor.enter("warm start", "demonstrations")

        def progress(done: int, loss: float) -> None:
            self.monitor.writer.write(done - updates, {"warm_start/loss": loss})
            self.monitor.show(waiting_for=f"supervised updates ({done} of {updates}, loss {loss:.3f})")

        await warm_start.train(learner, progress)

    def _alarms(self, replay: Replay) -> AlarmBoard:
        hacking, folder = self.config.alarms.reward_hacking, self.directory.path
        alarms = [reward_hacking_alarm(hacking, fetch=replay.fetch, run_dir=folder)] if hacking.enabled else []
        return AlarmBoard(alarms, log=folder / ALARMS_FILE)

    def _worker_spec(self, model: Path, replay_url: str, replay_namespace: str) -> WorkerSpec:
        return WorkerSpec(
            name="actor",
            config=self.config,
            model=model,
            replay_url=replay_url,
            replay_namespace=replay_namespace,
            priority=FreshPriority(self.config),
            log_file=self.directory.logs / "actor.log",
        )


def _sinks(config: RunConfig, directory: RunDirectory) -> list[MetricSink]:
    sinks: list[MetricSink] = []
    if config.metrics.jsonl:
        sinks.append(JsonlSink(directory.path / "metrics.jsonl"))
    if config.metrics.tensorboard:
        sinks.append(TensorBoardSink(directory.path / "tensorboard"))
    if config.metrics.ray:
        sinks.append(RayMetricSink(config.run.name))
    return sinks


def _log_to(path: Path) -> None:
    """Send this process's log records, third-party ones included, to a file instead of the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
