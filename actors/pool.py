"""ActorPool: spawns the rollout actors, keeps them busy, replaces the ones that die, brings them new weights."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from actors.engine import engine_environment
from actors.report import EpisodeSummary, GroupReport
from actors.rollout import GroupRequest
from actors.worker import RolloutWorker, WorkerSpec
from cacherl.errors import DeadlineExceeded, EngineDied, EngineError
from cacherl.policy import WeightManifest
from envs.base import Task

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

logger = logging.getLogger(__name__)

#: Seconds before an evaluation looks again for an actor that has started.
_RETRY_S = 0.5


@dataclass(slots=True)
class _Actor:
    """One live actor: its Ray handle, the node it runs on, and how often it was restarted."""

    name: str
    bundle: int
    handle: Any
    node: str = ""
    restarts: int = 0
    replacing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """A version in Ray's object store."""

    manifest: WeightManifest
    buffer: ObjectRef[Any]


class ActorPool:
    """N rollout actors of one run.

    Args:
        spec: what every actor is told; `name` and `log_file` are set per actor.
        namespace: Ray namespace in which the actors are named.
        placement: one bundle per actor.
        on_restart: told in words when an actor had to be replaced.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        namespace: str,
        placement: PlacementGroup,
        on_restart: Callable[[str], None] = logger.warning,
    ) -> None:
        self._spec = spec
        self._config = spec.config
        self._namespace = namespace
        self._placement = placement
        self._on_restart = on_restart
        self._actors: list[_Actor] = []
        self._weights: PublishedWeights | None = None
        self._swap = asyncio.Lock()

    @property
    def alive(self) -> int:
        """Actors whose engine has started."""
        return sum(bool(actor.node) for actor in self._actors)

    async def start(self) -> None:
        """Start all actors at once.

        Raises:
            DeadlineExceeded: names the actors that were not ready after actors.start_deadline_s.
            EngineError: an engine refused to start.
        """
        for index in range(self._config.actors.count):
            name = f"actor-{index}"
            self._actors.append(_Actor(name=name, bundle=index, handle=self._spawn(name, index)))
        await asyncio.gather(*map(self._ready, self._actors))

    async def rollout(self, next_request: Callable[[], GroupRequest], on_report: Callable[[GroupReport], None]) -> None:
        """Keep every actor busy with groups until cancelled.

        Raises:
            EngineError: an actor died more than actors.max_restarts times.
            CacheRLError: an actor met an error that a new actor would meet again.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for actor in self._actors:
                    tasks.create_task(self._keep_busy(actor, next_request, on_report))
        except ExceptionGroup as failures:  # what the first one met is why the others were stopped
            raise failures.exceptions[0] from None

    async def _keep_busy(
        self, actor: _Actor, next_request: Callable[[], GroupRequest], on_report: Callable[[GroupReport], None]
    ) -> None:
        import ray

        pending: dict[asyncio.Task[GroupReport], tuple[Any, GroupRequest]] = {}
        requeued: list[GroupRequest] = []
        try:
            while True:
                while len(pending) < self._config.actors.groups_in_flight:
                    request = requeued.pop() if requeued else next_request()
                    pending[asyncio.create_task(_call(actor.handle.play.remote(request)))] = actor.handle, request
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                failures: list[tuple[Any, BaseException]] = []
                for task in done:
                    handle, request = pending.pop(task)
                    try:
                        on_report(task.result())
                    except (ray.exceptions.RayActorError, EngineDied) as error:
                        failures.append((handle, error))
                        requeued.append(request)
                if failures:
                    requeued += [request for _, request in pending.values()]
                    await _drop(pending)
                    pending.clear()
                    for handle, failure in failures:
                        await self._replace(actor, handle, failure)
        finally:
            await _drop(pending)

    async def _replace(self, actor: _Actor, failed: Any, cause: BaseException) -> None:
        """Put a new process in the place of `failed`, unless somebody else who met its death has done so."""
        async with actor.replacing:
            if actor.handle is failed:
                await self._restart(actor, cause)

    async def _restart(self, actor: _Actor, cause: BaseException) -> None:
        actor.restarts += 1
        limit = self._config.actors.max_restarts
        logger.warning("%s failed (%s); restart %d of %d", actor.name, cause, actor.restarts, limit)
        if actor.restarts > limit:
            raise EngineError(f"{actor.name} died {actor.restarts} times (actors.max_restarts): {cause}") from cause
        self._kill(actor)
        actor.node = ""
        actor.handle = self._spawn(actor.name, actor.bundle, attempt=actor.restarts)
        self._on_restart(f"{actor.name} died and is started again ({actor.restarts} of {limit}; see logs/{actor.name}.log)")
        await self._ready(actor)
        async with self._swap:
            if self._weights:
                await self._load([actor], self._weights)

    async def publish(self, weights: PublishedWeights) -> None:
        """Bring `weights` to every engine; returns when all have acknowledged the version.

        Raises:
            DeadlineExceeded: names the engines that did not acknowledge within weights.deadline_s.
        """
        async with self._swap:
            self._weights = weights
            # Copies: an actor that is replaced meanwhile loads this version when it is ready, and the calls go to the dead one.
            await self._load([replace(actor) for actor in self._actors if actor.node], weights)

    async def _load(self, actors: Sequence[_Actor], weights: PublishedWeights) -> None:
        import ray

        waiting = {actor.name for actor in actors}

        async def load(actor: _Actor, path: str) -> EngineError | None:
            try:
                await _call(actor.handle.load_weights.remote(weights.manifest, path))
            except (ray.exceptions.RayActorError, EngineDied):
                pass  # whoever meets its death replaces it, and the new one loads this version
            except EngineError as error:
                return error
            waiting.discard(actor.name)
            return None

        async def bring(node: str) -> None:
            here = [actor for actor in actors if actor.node == node]
            refused: list[EngineError] = []
            for relay in here:
                try:
                    path = await _call(relay.handle.stage_weights.remote(weights.manifest, weights.buffer))
                except ray.exceptions.RayActorError:
                    waiting.discard(relay.name)
                    continue
                answers = await asyncio.gather(*(load(actor, path) for actor in here if actor.name in waiting))
                refused = [answer for answer in answers if answer]
                if not refused:
                    return
            if refused:  # what was staged vanishes with a relay that dies, so it takes all of them to refuse
                raise refused[0]

        deadline_s = self._config.weights.deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*map(bring, {actor.node for actor in actors}))
        except TimeoutError:
            names = ", ".join(sorted(waiting))
            raise DeadlineExceeded(
                f"{names} to acknowledge weights of version {weights.manifest.version}", deadline_s
            ) from None

    async def evaluate(self, tasks: Sequence[Task], label: str) -> list[EpisodeSummary]:
        """Greedy episodes of `tasks`, spread over the actors; the share of one that dies goes to the next.

        Raises:
            DeadlineExceeded: not finished after eval.deadline_s.
            EngineError: an actor died more than actors.max_restarts times.
        """
        shares = [list(tasks[index :: len(self._actors)]) for index in range(len(self._actors))]
        calls = [self._evaluate(share, label, first) for first, share in enumerate(shares) if share]
        try:
            async with asyncio.timeout(self._config.eval.deadline_s) as limit:
                results = await asyncio.gather(*calls)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"{len(tasks)} held-out episodes ({label})", self._config.eval.deadline_s) from None
        return [summary for result in results for summary in result]

    async def _evaluate(self, tasks: Sequence[Task], label: str, first: int) -> list[EpisodeSummary]:
        import ray

        for turn in itertools.count(first):
            actor = self._actors[turn % len(self._actors)]
            async with self._swap:  # a new actor loads the version first
                handle = actor.handle if actor.node else None
            if handle is None:
                await asyncio.sleep(_RETRY_S)  # it is on its way back
                continue
            try:
                return list(await _call(handle.evaluate.remote(tasks, label)))
            except (ray.exceptions.RayActorError, EngineDied) as error:
                await self._replace(actor, handle, error)
        raise AssertionError("unreachable")

    async def sample(self, tasks: Sequence[Task], label: str) -> list[Any]:
        """Sampled trajectories of `tasks` from the first actor (not pushed)."""
        return list(await _call(self._actors[0].handle.sample.remote(list(tasks), label)))

    async def close(self, deadline_s: float = 20.0) -> None:
        """Stop every engine, then every actor; whatever does not stop in time is killed."""
        closing = [asyncio.create_task(_call(actor.handle.close.remote())) for actor in self._actors]
        if closing:
            _, late = await asyncio.wait(closing, timeout=deadline_s)
            await _drop(late)
        for task in closing:
            if task.done() and not task.cancelled() and task.exception():
                logger.info("an actor was gone before it could close: %s", task.exception())
        for actor in self._actors:
            self._kill(actor)
        self._actors.clear()

    def _spawn(self, name: str, bundle: int, attempt: int = 0) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actors = self._config.actors
        environment = engine_environment(threads=actors.threads, kv_cache_gib=actors.kv_cache_gib, gpus=actors.gpus_per_actor)
        spec = replace(self._spec, name=name, log_file=self._spec.log_file.with_name(f"{name}.log"))
        return (
            ray.remote(RolloutWorker)
            .options(
                name=name if not attempt else f"{name}.{attempt}",
                namespace=self._namespace,
                num_cpus=actors.cpus_per_actor,
                num_gpus=actors.gpus_per_actor,
                runtime_env={"env_vars": environment},
                max_concurrency=1000,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._placement, placement_group_bundle_index=bundle
                ),
            )
            .remote(spec)
        )

    async def _ready(self, actor: _Actor) -> None:
        import ray

        deadline_s = self._config.actors.start_deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                actor.node = await _call(actor.handle.start.remote())
        except TimeoutError:
            raise DeadlineExceeded(f"the engine of {actor.name} to start", deadline_s) from None
        except ray.exceptions.RayActorError as error:
            raise EngineError(f"{actor.name} died while starting; see logs/{actor.name}.log ({error})") from error

    def _kill(self, actor: _Actor) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(actor.handle)


async def _call(reference: Any) -> Any:
    """Await a Ray call; an error that the actor raised on purpose comes out as itself."""
    import ray

    try:
        return await reference
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None


async def _drop(tasks: Any) -> None:
    """Cancel and collect tasks whose results nobody wants any more."""
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
