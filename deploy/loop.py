"""The loop of a run: rollouts and updates, side by side, joined only by the replay service and the published weights.

coroutine   waits for                                        is unblocked by
rollout     a free slot of an actor; the replay service's     a finished group; the learner's next batch
            back-pressure
updates     enough new trajectories in the pool; the          pushed groups; acknowledgements of all engines
            engines to take a version
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.pool import ActorPool, PublishedWeights
from actors.report import GroupReport, eval_metrics
from cacherl.config import RunConfig
from cacherl.errors import DeadlineExceeded
from cacherl.policy import FIRST_VERSION
from deploy.alarms import AlarmBoard, Observation
from deploy.checkpointing import Checkpointer
from deploy.governor import ReplayGovernor
from deploy.monitor import Monitor
from deploy.tasks import TaskStream
from envs.base import Task
from learner.group import LearnerGroup
from replay_service.plan import SamplePlan, Wait
from replay_service.store import Replay
from rewards.schedule import RewardSchedule

#: Seconds between two attempts to draw a batch.
_SAMPLE_POLL_S = 0.05
#: Fields of `ReplayStats` that become metrics of the same name.
_POOL_METRICS = (
    *("groups", "trajectories", "bytes", "never_sampled", "inserted", "sampled", "zero_variance"),
    *("evicted", "cleared", "superseded", "retired", "stale_refused", "stale_dropped"),
    *("expired", "late", "push_waits", "sample_waits"),
)


@dataclass(slots=True, kw_only=True)
class Loop:
    """One run's reinforcement learning, from the first published version to the last evaluation."""

    config: RunConfig
    pool: ActorPool
    learner: LearnerGroup
    replay: Replay
    stream: TaskStream
    rewards: RewardSchedule
    held_out: list[Task]
    monitor: Monitor
    checkpointer: Checkpointer
    alarms: AlarmBoard
    governor: ReplayGovernor | None = None
    version: int = FIRST_VERSION

    async def run(self) -> None:
        """Train from `version` until `run.updates` or `run.stop_at_success`.

        Raises:
            CacheRLError: whatever ended the rollouts or the updates early.
        """
        self.stream.set_version(self.version)
        self.monitor.enter("first weights", "every engine to load the start weights")
        await self._publish()
        await asyncio.to_thread(self.replay.set_version, self.version)
        if not self.monitor.held_out:  # a resumed run has the evaluation of its version on record
            success = await self._evaluate()
            await self.checkpointer.after_update(self.version, success=success, last=self.config.run.updates <= self.version)
        if self.governor is not None:  # a resumed run's has left the settings' behind
            await asyncio.to_thread(self.replay.set_update_frequency, self.governor.update_frequency)
        self.monitor.enter("training")
        await _first_to_end(self._updates(), self.pool.rollout(self.stream, self._on_report))
        await self.checkpointer.finish()

    def _on_report(self, report: GroupReport) -> None:
        self.stream.observe(report)
        self.monitor.on_report(report)

    async def _updates(self) -> None:
        config = self.config
        while self.version < config.run.updates:
            begin = time.monotonic()
            batch = await self._wait_for_batch(f"{self.stream.prefix}-{self.version + 1}")
            sampled = time.monotonic()
            self.monitor.show(waiting_for="the learner's update")
            stats = await self.learner.update(batch)
            self.version += 1
            self.stream.set_version(self.version)
            evaluates = self.version % config.eval.every == 0 or self.version == config.run.updates
            metrics = dict(stats.metrics) | {"time/sample": sampled - begin, "learner/version": float(self.version)}
            if evaluates or self.version % config.weights.publish_every == 0:  # what is evaluated is what was published
                metrics["time/publish"] = await self._publish()
            await asyncio.to_thread(self.replay.set_version, self.version)
            rollouts = self.monitor.drain()
            self.rewards.observe(self.version, turns=rollouts.get("rollout/turns"), success=rollouts.get("rollout/success"))
            metrics |= rollouts | self.rewards.metrics | self.stream.metrics() | self.checkpointer.drain()
            metrics |= await self._pool_metrics()
            self.monitor.show(actors_alive=self.pool.alive)
            metrics |= await self._govern(stats.metrics)
            metrics |= await self._judge(metrics, [group for groups in stats.group_ids for group in groups])
            self.monitor.on_update(self.version, metrics)
            success = await self._evaluate() if evaluates else None
            stops = config.run.stop_at_success is not None and success is not None and success >= config.run.stop_at_success
            last = stops or self.version == config.run.updates
            await self.checkpointer.after_update(self.version, success=success, last=last)
            if stops:
                return

    async def _wait_for_batch(self, batch: str) -> str:
        """Draw a batch; returns its id, which is `batch` unless an earlier session drew that and some of it is gone."""
        plan = await self._drawn(batch)
        if plan.repeated and None in await asyncio.to_thread(self.replay.fetch, [entry.group_id for entry in plan.entries]):
            batch = f"{batch}-again-{secrets.token_hex(4)}"
            await self._drawn(batch)
        return batch

    async def _drawn(self, batch: str) -> SamplePlan:
        groups = self.config.learner.batch_size // self.config.rollout.group_size
        deadline_s = self.config.replay.deadline_s
        deadline = time.monotonic() + deadline_s
        while isinstance(plan := await asyncio.to_thread(self.replay.try_sample, batch, groups), Wait):
            self.monitor.show(waiting_for=str(plan))
            if time.monotonic() > deadline:
                raise DeadlineExceeded(str(plan), deadline_s)
            await asyncio.sleep(_SAMPLE_POLL_S)
        return plan

    async def _publish(self) -> float:
        begin = time.monotonic()
        self.monitor.show(waiting_for=f"every engine to load version {self.version}")
        manifest, buffer = await self.learner.publish(self.version)
        await self.pool.publish(PublishedWeights(manifest=manifest, buffer=buffer))
        return time.monotonic() - begin

    async def _evaluate(self) -> float:
        phase = self.monitor.view.phase
        self.monitor.enter("evaluation", f"{len(self.held_out)} held-out episodes")
        metrics = eval_metrics(await self.pool.evaluate(self.held_out, f"evaluation at version {self.version}"))
        self.monitor.writer.write(self.version, metrics)
        self.monitor.on_evaluation(metrics)
        self.monitor.enter(phase)
        return metrics["eval/success"]

    async def _govern(self, metrics: Mapping[str, float]) -> dict[str, float]:
        if self.governor is None:
            return {}
        decision = self.governor.observe(metrics)
        # Said after every update, because an actor that restarts opens the pool with the settings of the run's start.
        await asyncio.to_thread(self.replay.set_update_frequency, decision.update_frequency)
        return decision.metrics

    async def _judge(self, metrics: Mapping[str, float], group_ids: Sequence[str]) -> Mapping[str, float]:
        observation = Observation(update=self.version, metrics=metrics, group_ids=tuple(group_ids))
        verdict = await asyncio.to_thread(self.alarms.check, observation)
        for event in verdict.events:
            self.monitor.note(str(event))
        return verdict.metrics

    async def _pool_metrics(self) -> dict[str, float]:
        await asyncio.to_thread(self.replay.reap)
        stats = await asyncio.to_thread(self.replay.stats)
        return {f"replay/{name}": float(getattr(stats, name)) for name in _POOL_METRICS}


async def _first_to_end(*coroutines: object) -> None:
    """Run all; when one ends or fails, stop the others and pass its error on."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]  # type: ignore[call-overload]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
