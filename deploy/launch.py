"""Launch: start everything that a run consists of, run its loop, and take all of it down again, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from actors.pool import ActorPool
from actors.scoring import composer_of
from actors.worker import WorkerSpec
from cacherl.config import RunConfig
from cacherl.errors import CacheRLError, DeadlineExceeded, ReplayError
from cacherl.metrics import JsonlSink, MetricSink, MetricWriter, TensorBoardSink
from cacherl.policy import FIRST_VERSION
from cacherl.stateful import Stateful
from deploy.alarms import ALARMS_FILE, AlarmBoard
from deploy.checkpointing import Checkpointer
from deploy.checkpoints import Checkpoint, CheckpointStore
from deploy.cluster import cluster, reserve
from deploy.demonstrations import prefill
from deploy.governor import ReplayGovernor
from deploy.learner_alarms import learner_alarms
from deploy.loop import Loop
from deploy.monitor import Monitor
from deploy.panel import Panel
from deploy.priority import FreshPriority
from deploy.ray_metrics import RayMetricSink
from deploy.report import write_report
from deploy.rescore import fingerprint, rescore_run
from deploy.reward_hacking import reward_hacking_alarm
from deploy.run_dir import RunDirectory, RunIdentity, note_reward, sole_session
from deploy.run_record import SUMMARY_FILE
from deploy.run_view import RunView
from deploy.shipping import secrets_to_ship
from deploy.tasks import TaskStream, held_out_tasks
from deploy.terminal import log_to, own_terminal
from deploy.warm_start import WarmStart, base_model, require_inputs
from envs.base import TaskSource
from envs.preflight import ready_source, require_solutions
from learner.group import LearnerGroup
from replay_service.server import ReplayServer
from replay_service.store import Replay
from rewards.schedule import RewardSchedule

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
    source = ready_source(config.env)  # refuses bad settings before an earlier run is replaced, as do the next lines
    if config.exploration.needs_solutions:
        require_solutions(source, config.env, "exploration.explorer teacher")
    composer_of(config, source)
    FreshPriority(config)
    require_inputs(config)
    with sole_session(config):
        directory = RunDirectory(config)
        checkpoint = _store(config, directory).newest() if directory.resumed else None
        log_to(directory.logs / "driver.log")
        with own_terminal(directory.logs / "driver.log") as console:
            summary = _watched(config, source, directory, checkpoint, console)
        directory.write_json(SUMMARY_FILE, asdict(summary))
        return summary, write_report(directory.path)


def _watched(
    config: RunConfig, source: TaskSource, directory: RunDirectory, checkpoint: Checkpoint | None, console: Console
) -> Summary:
    """The run under a panel; whatever happens to it ends in a summary."""
    with (
        Panel(console, _LINE_INTERVAL_S) as panel,
        MetricWriter(_sinks(config, directory, None if checkpoint is None else checkpoint.version)) as writer,
    ):
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
            launch = Launch(config=config, directory=directory, monitor=monitor, source=source, checkpoint=checkpoint)
            asyncio.run(_supervised(launch))
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
    """The run under its deadline, ended in order by Ctrl-C, SIGTERM and the end of its terminal."""
    task = asyncio.current_task()
    assert task is not None
    deadline_s = launch.config.run.deadline_s
    signals = _Signals(launch.monitor, task)
    signals.heed()
    try:
        async with asyncio.timeout(deadline_s) as limit:
            await launch.run(on_connected=signals.heed)  # again, because Ray puts handlers of its own
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded("the run to end (run.deadline_s)", deadline_s) from None


class _Signals:
    """Ctrl-C, SIGTERM and the end of the terminal stop a run, in order and once: a second one must not stop the stopping."""

    def __init__(self, monitor: Monitor, task: asyncio.Task[Any]) -> None:
        self._monitor = monitor
        self._task = task
        self._stopping = False

    def heed(self) -> None:
        """Take the signals of this process, but for those that it was started to ignore (`nohup`)."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        if self._stopping:
            self._monitor.note("still stopping; whatever does not stop in time is killed")
            return
        self._stopping = True
        self._monitor.enter("stopping", "engines, learner and servers to stop")
        self._task.cancel()


@dataclass(slots=True, kw_only=True)
class Launch:
    """The composition root of one session of a run.

    Attributes:
        checkpoint: what the session goes on from; None: it begins at the beginning.
    """

    config: RunConfig
    directory: RunDirectory
    monitor: Monitor
    source: TaskSource
    checkpoint: Checkpoint | None

    async def run(self, on_connected: Callable[[], None]) -> None:
        """Bring everything up, train, and tear down in reverse order."""
        config, directory, monitor = self.config, self.directory, self.monitor
        # Ray's names are the session's own: on a shared cluster, processes of one that was killed may still be ending.
        session = f"{config.run.name}-{secrets.token_hex(4)}"
        identity = directory.identity(RunIdentity(run_id=session, replay_namespace=config.replay.namespace or session))
        namespace = identity.replay_namespace
        async with AsyncExitStack() as stack:
            monitor.enter("starting", "Ray")
            dashboard = stack.enter_context(cluster(config, namespace=session))
            on_connected()
            monitor.show(waiting_for="the replay service")
            if dashboard:
                monitor.note(f"Ray dashboard at http://{dashboard}")
            url = config.replay.url or stack.enter_context(_explained(ReplayServer(directory.replay))).url
            replay = await self._open_pool(stack, url, namespace)
            monitor.show(waiting_for="resources of the cluster")
            placement = await reserve(config)
            stack.callback(placement.release)

            warm_start = await asyncio.to_thread(self._start_model)
            monitor.show(waiting_for="the learner to load the model")

            def group() -> LearnerGroup:
                return LearnerGroup(
                    config,
                    model=warm_start.model,
                    replay_url=url,
                    replay_namespace=namespace,
                    log_dir=directory.logs,
                    ray_namespace=session,
                    placement=placement.learner,
                    secrets=secrets_to_ship(config, judge=False),
                )

            learner = await stack.enter_async_context(_started(group()))
            if warm_start.needed:
                await self._warm_start(warm_start, learner)
                if config.learner.lora.rank:  # the adapter begins beside the warm-started weights: they are the reference
                    await learner.close()
                    learner = await stack.enter_async_context(_started(group()))
            elif config.warm_start.updates and not directory.resumed:
                monitor.note("warm start from the cache")

            rewards = RewardSchedule(config.reward)
            stream = TaskStream(self.source, config, prefix=identity.run_id, scales=lambda: rewards.scales)
            alarms, governor = self._alarms(replay), self._governor()
            parts: dict[str, Stateful] = {"tasks": stream, "monitor": monitor, "alarms": alarms, "rewards": rewards}
            checkpointer = Checkpointer(
                settings=config.checkpoint,
                store=_store(config, directory),
                learner=learner,
                replay=replay,
                namespace=namespace,
                parts=parts | ({"governor": governor} if governor else {}),
                world=config.learner.workers,
                deadline_s=config.learner.update_deadline_s,
            )
            version = await self._resume(checkpointer, stream, replay)
            await self._score_pool(replay)
            if config.warm_start.prefill is not None and not directory.resumed:
                await self._prefill(replay, warm_start.model)
            spec = self._worker_spec(warm_start.model, url, namespace, governor)
            pool = ActorPool(spec, namespace=session, placement=placement.actors, on_restart=monitor.note)
            stack.push_async_callback(pool.close)
            monitor.enter("starting engines", f"{config.actors.count} vLLM engines")
            await pool.start()
            monitor.show(actors_alive=pool.alive)
            loop = Loop(
                config=config,
                pool=pool,
                learner=learner,
                replay=replay,
                stream=stream,
                rewards=rewards,
                held_out=held_out_tasks(self.source, config),
                monitor=monitor,
                checkpointer=checkpointer,
                version=version,
                alarms=alarms,
                governor=governor,
            )
            await loop.run()
            monitor.enter("saving", "the trained model")
            await learner.save(directory.final_model)
            monitor.enter("stopping", "engines, learner and servers to stop")

    async def _open_pool(self, stack: AsyncExitStack, url: str, namespace: str) -> Replay:
        replay = stack.enter_context(contextlib.closing(Replay(url, namespace, self.config.replay)))
        await asyncio.to_thread(replay.check)
        if not self.directory.resumed:  # groups that an earlier run left in the namespace are of no version of this one
            await asyncio.to_thread(replay.set_version, FIRST_VERSION, drop_newer=True)
        return replay

    def _start_model(self) -> WarmStart:
        """The model that reinforcement learning begins with; a resumed run keeps its own, whatever became of the cache."""
        base = base_model(self.config, self.source, self.directory.model)
        return WarmStart(self.config, self.source, base, kept=self.directory.start_model)

    async def _resume(self, checkpointer: Checkpointer, stream: TaskStream, replay: Replay) -> int:
        """Go back to the checkpoint, if there is one; returns the version to go on from."""
        monitor, version = self.monitor, FIRST_VERSION
        if self.checkpoint is not None:
            monitor.show(waiting_for=f"the learner to load the checkpoint of version {self.checkpoint.version}")
            version = await checkpointer.resume(self.checkpoint)
        if self.directory.resumed:
            skipped = await asyncio.to_thread(stream.skip_pushed, replay.pushed)
            logger.info("resumed at version %d; %d groups pushed since then are not played again", version, skipped)
            monitor.show(update=version)
            monitor.note(f"resumed at update {version}" + ("" if self.checkpoint else ": there is no checkpoint yet"))
        return version

    async def _score_pool(self, replay: Replay) -> None:
        """What an earlier session left in the pool gets the rewards of this one, if the reward was edited in between."""
        folder, mark = self.directory.path, fingerprint(self.config)
        if not self.directory.resumed:
            note_reward(folder, mark)
        elif self.directory.scored_with != mark:
            self.monitor.show(waiting_for="the pool to be re-scored with the edited reward")
            result = await asyncio.to_thread(rescore_run, folder, replay, self.config, alone=True)
            missing = "with scores missing that the judge did not give, which the next resume asks for again"
            self.monitor.note(
                f"the reward was edited: {result.rescored} groups re-scored, {result.dropped} without a gradient dropped"
                + (f", {result.unjudged} {missing}" if result.unjudged else "")
            )

    async def _prefill(self, replay: Replay, model: Path) -> None:
        self.monitor.show(waiting_for=f"the pool to be filled from {self.config.warm_start.prefill}")
        filled = await asyncio.to_thread(prefill, self.config, replay, model)
        kept = (await asyncio.to_thread(replay.stats)).groups  # fewer, if the file is larger than the pool
        self.monitor.note(f"the pool begins with {kept} of the {filled.imported} groups that were read")

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
        return AlarmBoard([*alarms, *learner_alarms(self.config.alarms.learner)], log=folder / ALARMS_FILE)

    def _governor(self) -> ReplayGovernor | None:
        config = self.config
        if config.governor.replay_ratio is None:
            return None
        return ReplayGovernor(
            config.governor, batch_size=config.learner.batch_size, update_frequency=config.replay.update_frequency
        )

    def _worker_spec(self, model: Path, replay_url: str, replay_namespace: str, governor: ReplayGovernor | None) -> WorkerSpec:
        config = self.config
        if governor is not None:  # who opens the pool sets its rules, and must not take back what was decided before a resume
            settings = replace(config.replay, update_frequency=governor.update_frequency)
            config = config.model_copy(update={"replay": settings})
        return WorkerSpec(
            name="actor",
            config=config,
            model=model,
            replay_url=replay_url,
            replay_namespace=replay_namespace,
            priority=FreshPriority(self.config),
            log_file=self.directory.logs / "actor.log",
            secrets=secrets_to_ship(self.config, judge=True),
        )


@contextlib.contextmanager
def _explained(server: ReplayServer) -> Iterator[ReplayServer]:
    """A server that, if it has given up, says so where its clients only found nobody."""
    with server:
        try:
            yield server
        except ReplayError as error:
            if server.failure is None:
                raise
            raise ReplayError(f"{error}; {server.failure}") from error


@contextlib.asynccontextmanager
async def _started(learner: LearnerGroup) -> AsyncIterator[LearnerGroup]:
    """A learner that is closed whatever happens, its start included."""
    try:
        await learner.start()
        yield learner
    finally:
        await learner.close()


def _store(config: RunConfig, directory: RunDirectory) -> CheckpointStore:
    settings = config.checkpoint
    return CheckpointStore(directory.checkpoints, keep_last=settings.keep_last, keep_best=settings.keep_best)


def _sinks(config: RunConfig, directory: RunDirectory, resume_after: int | None) -> list[MetricSink]:
    """Sinks that go on after update `resume_after`; None: the run begins at the beginning."""
    directory.forget_after(resume_after)
    sinks: list[MetricSink] = []
    if config.metrics.jsonl:
        sinks.append(JsonlSink(directory.metrics, resume_after=resume_after))
    if config.metrics.tensorboard:
        sinks.append(TensorBoardSink(directory.tensorboard, resume_after=resume_after))
    if config.metrics.ray:
        sinks.append(RayMetricSink(config.run.name))
    return sinks
