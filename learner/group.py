"""LearnerGroup: the driver's handle on the W ranks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cacherl.config import RunConfig
from cacherl.durable import WrittenFile
from cacherl.errors import CacheRLError, DeadlineExceeded, LearnerError
from cacherl.policy import WeightManifest
from cacherl.secrets import Secrets
from cacherl.trajectory import Trajectory
from learner.demonstrations import Demonstrations
from learner.rank_actor import RankActor
from learner.stats import UpdateStats, merge

#: Supervised updates between two progress reports.
_PROGRESS_UPDATES = 10
_CLOSE_DEADLINE_S = 20.0

Progress = Callable[[int, float], None]


class LearnerGroup:
    """W learner ranks as Ray actors named 'learner-<rank>' in the driver's Ray namespace.

    Every method waits at most for its deadline and names the rank that it waits for; a rank that dies or raises ends the
    wait of all, and the group must then be closed.

    Args:
        config: the run's configuration.
        model: Hugging Face folder of the initial weights, readable on every node.
        replay_url, replay_namespace: of the replay pool.
        log_dir: folder for one 'learner-<rank>.log' each.
        ray_namespace: where the actors' names are known; None: the driver's own.
        placement: placement group with a bundle per rank, in rank order; None leaves the placement to Ray.
        secrets: of the replay service; None: every node has them.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        model: Path,
        replay_url: str,
        replay_namespace: str,
        log_dir: Path,
        ray_namespace: str | None = None,
        placement: PlacementGroup | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self._config = config
        self._cwd = Path.cwd()
        world = config.learner.workers
        self._ranks = [
            _actor(config, rank, ray_namespace, placement).remote(
                config,
                self._cwd / model,
                replay_url=replay_url,
                replay_namespace=replay_namespace,
                rank=rank,
                world=world,
                log_path=self._cwd / log_dir / f"learner-{rank}.log",
                secrets=secrets or Secrets(),
            )
            for rank in range(world)
        ]

    async def start(self) -> None:
        """Start the processes, let them meet and load the model."""
        deadline = self._config.learner.start_deadline_s
        address, port = await self._first(self._ranks[0].endpoint.remote(), "start", deadline)
        await self._call("setup", address, port, self._warm_start_threads(), deadline=deadline)

    async def warm_start(self, demonstrations: Sequence[Trajectory], progress: Progress | None = None) -> float:
        """`warm_start.updates` supervised steps, before the first update.

        Args:
            demonstrations: their sampled tokens are imitated.
            progress: called with (updates done, mean loss since the last call in nats per token).

        Returns:
            The last reported loss; NaN without updates.
        """
        deadline, loss, done = self._config.learner.update_deadline_s, float("nan"), 0
        await self._call("start_warm_start", ray.put(Demonstrations.of(demonstrations)), deadline=deadline)
        while done < self._config.warm_start.updates:
            count = min(_PROGRESS_UPDATES, self._config.warm_start.updates - done)
            losses = (await self._call("warm_start", count, deadline=deadline))[0]
            done, loss = done + count, sum(losses) / count
            if progress is not None:
                progress(done, loss)
        return loss

    async def update(self, batch_id: str) -> UpdateStats:
        """One update on replay batch `batch_id`. The first one ends the warm start: it freezes the KL reference."""
        deadline = self._config.learner.update_deadline_s + self._config.replay.deadline_s
        ranks = await self._call("update", batch_id, deadline=deadline)
        return merge(ranks, normalize_std=self._config.advantage.normalize_std)

    async def publish(self, version: int) -> tuple[WeightManifest, ray.ObjectRef]:
        """Gather the weights as `version`: their manifest and a reference to the uint8 buffer, which rank 0 owns."""
        calls = [rank.publish.remote(version) for rank in self._ranks]
        results = await self._gather(calls, "publish", self._config.learner.update_deadline_s)
        manifest, references = results[0]
        return manifest, references[0]

    async def token_logprobs(self, trajectories: Sequence[Trajectory]) -> list[Any]:
        """float32 [S] per trajectory: the learner's log-probability of each sampled token."""
        results = await self._call("token_logprobs", list(trajectories), deadline=self._config.learner.update_deadline_s)
        return results[0]  # type: ignore[no-any-return]

    async def save(self, directory: Path) -> None:
        """Write the policy as a Hugging Face folder on rank 0's node."""
        await self._call("save", self._cwd / directory, deadline=self._config.learner.update_deadline_s)

    async def snapshot(self, folder: Path) -> None:
        """Let every rank copy its state and begin to write it into `folder`, which all of them reach.

        `learner.checkpoint.take_reports` tells when all have.
        """
        await self._call("snapshot", self._cwd / folder, deadline=self._config.learner.update_deadline_s)

    async def restore(self, folder: Path, files: Sequence[WrittenFile]) -> int:
        """Go on from a complete checkpoint, before the first update; returns its version."""
        versions = await self._call("restore", self._cwd / folder, list(files), deadline=self._config.learner.start_deadline_s)
        return int(versions[0])

    async def close(self) -> None:
        """End every process; never raises for a rank that is gone already."""
        calls = [asyncio.ensure_future(_awaited(rank.call.remote("close"))) for rank in self._ranks]
        await asyncio.wait(calls, timeout=_CLOSE_DEADLINE_S)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for rank in self._ranks:
            ray.kill(rank, no_restart=True)

    def _warm_start_threads(self) -> int:
        settings = self._config.learner
        return settings.warm_start_threads or max(1, (os.cpu_count() or 1) // settings.workers)

    async def _call(self, method: str, *args: Any, deadline: float) -> list[Any]:
        return await self._gather([rank.call.remote(method, *args) for rank in self._ranks], method, deadline)

    async def _first(self, call: ray.ObjectRef, what: str, deadline: float) -> Any:
        return (await self._gather([call], what, deadline))[0]

    async def _gather(self, calls: Sequence[ray.ObjectRef], what: str, deadline: float) -> list[Any]:
        """Results of all ranks in order.

        Raises:
            DeadlineExceeded: names the ranks that did not answer.
            LearnerError: names the rank that died or raised; an error of CacheRL's own is raised as it is.
        """
        tasks = [asyncio.ensure_future(_awaited(call)) for call in calls]
        try:
            done, pending = await asyncio.wait(tasks, timeout=deadline, return_when=asyncio.FIRST_EXCEPTION)
            for rank, task in enumerate(tasks):
                if task in done and (error := task.exception()) is not None:
                    _raise(error, rank, what)
            if pending:
                late = ", ".join(str(rank) for rank, task in enumerate(tasks) if task in pending)
                raise DeadlineExceeded(f"learner rank {late} to finish {what}", deadline)
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()


async def _awaited(reference: ray.ObjectRef) -> Any:
    return await reference


def _raise(error: BaseException, rank: int, what: str) -> None:
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, CacheRLError):
        raise cause
    if isinstance(cause, RayActorError):
        raise LearnerError(f"learner rank {rank} died during {what}: {cause}") from error
    raise LearnerError(f"learner rank {rank} failed in {what}: {type(cause).__name__}: {cause}") from error


def _actor(config: RunConfig, rank: int, ray_namespace: str | None, placement: PlacementGroup | None) -> Any:
    settings = config.learner
    variables = {
        "OMP_NUM_THREADS": str(settings.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        **({} if settings.gpus_per_worker else {"DS_ACCELERATOR": "cpu"}),
    }
    options: dict[str, Any] = {
        "name": f"learner-{rank}",
        "namespace": ray_namespace,
        "num_cpus": settings.cpus_per_worker,
        "num_gpus": settings.gpus_per_worker,
        "max_restarts": 0,
        "runtime_env": {"env_vars": variables},
    }
    if placement is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(placement, rank)
    return ray.remote(RankActor).options(**options)
