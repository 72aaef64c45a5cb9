"""The Ray cluster of a run: the job's own, a named one, or a local one that starts and ends with the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacherl.config import RunConfig
from cacherl.errors import ConfigError, DeadlineExceeded
from deploy.shipping import modules_to_ship

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

#: Seconds of one wait for placement; Ray takes whole or fractional seconds.
_PLACEMENT_POLL_S = 1
#: Seconds for a cluster's head to take a connection.
_ANSWER_S = 10.0
#: Settings that keep Ray from reporting usage, overriding device variables, printing banners, and from starting a cluster by
#: itself for whatever is called after the run's has ended.
_QUIET = {
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}


@contextlib.contextmanager
def cluster(config: RunConfig, namespace: str) -> Iterator[str]:
    """Connect to Ray for the time of the run; yields the dashboard's address ('' without one).

    Address: `ray.address`, else the environment's RAY_ADDRESS (set by `ray job submit`), else a local cluster.

    Raises:
        ConfigError: the address does not answer, the cluster can never hold what the run asks for, or the user's own
            code cannot be sent to it.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    modules = modules_to_ship(config)
    address = config.ray.address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = (
        {"address": address} if address else {"address": "local", "include_dashboard": config.ray.dashboard}
    )
    if address:
        _require_answer(address)
    if modules:
        options["runtime_env"] = {"py_modules": modules}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            context = ray.init(namespace=namespace, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"ray.address: no Ray cluster answers at {address!r} ({error})") from None
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise ConfigError(f"{', '.join(modules)} cannot be sent to the cluster: {error}") from error
    try:
        _check_capacity(config, ray.cluster_resources())
        _check_nodes(config, sum(node["Alive"] for node in ray.nodes()))
        yield context.dashboard_url or ""
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Ray itself tries for minutes, deaf to Ctrl-C, to reach what does not listen."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return  # 'auto', 'local' or a ray:// URL, of which Ray says itself what is wrong
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S):
            return
    except OSError as error:
        raise ConfigError(f"ray.address: nothing listens at {address!r} ({error}); is that cluster running?") from None


def _check_capacity(config: RunConfig, total: dict[str, float]) -> None:
    for resource, kind in (("CPU", "cpus"), ("GPU", "gpus")):
        per_actor = getattr(config.actors, f"{kind}_per_actor")
        per_worker = getattr(config.learner, f"{kind}_per_worker")
        needed = config.actors.count * per_actor + config.learner.workers * per_worker
        if needed > total.get(resource, 0.0) + 1e-9 and not config.ray.autoscaling:
            raise ConfigError(
                f"the cluster has {total.get(resource, 0.0):g} {resource}s, the run needs {needed:g}: actors.count "
                f"{config.actors.count} x actors.{kind}_per_actor {per_actor:g} + learner.workers {config.learner.workers} x "
                f"learner.{kind}_per_worker {per_worker:g}; lower one, add nodes, or set ray.autoscaling=true"
            )


def _check_nodes(config: RunConfig, nodes: int) -> None:
    if nodes > 1 and config.replay.url is None:
        raise ConfigError(
            f"replay.url: the cluster has {nodes} nodes and an embedded server can be reached from its own only; "
            "start a Redis-protocol server that all nodes reach and give its URL"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Reserved resources: one bundle per learner rank (packed) and one per actor (spread)."""

    learner: PlacementGroup
    actors: PlacementGroup

    def release(self) -> None:
        """Give the resources back."""
        from ray.util import remove_placement_group

        for group in (self.learner, self.actors):
            remove_placement_group(group)


async def reserve(config: RunConfig) -> Placement:
    """Reserve everything that the run needs.

    Raises:
        DeadlineExceeded: the cluster could not give it within actors.start_deadline_s; says what was asked for.
    """
    from ray.util import placement_group

    learner, actors = config.learner, config.actors
    placement = Placement(
        learner=placement_group(
            [_bundle(learner.cpus_per_worker, learner.gpus_per_worker)] * learner.workers, strategy="PACK", name="learner"
        ),
        actors=placement_group(
            [_bundle(actors.cpus_per_actor, actors.gpus_per_actor)] * actors.count, strategy="SPREAD", name="actors"
        ),
    )
    try:
        for name, group in (("learner", placement.learner), ("actors", placement.actors)):
            await _granted(name, group, actors.start_deadline_s)
    except BaseException:
        placement.release()
        raise
    return placement


async def _granted(name: str, group: PlacementGroup, deadline_s: float) -> None:
    """Wait in short steps, so that a cancelled run need not wait for the deadline."""
    deadline = time.monotonic() + deadline_s
    while not await asyncio.to_thread(group.wait, _PLACEMENT_POLL_S):
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"resources of the {name}: {group.bundle_specs}", deadline_s)


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    bundle = {name: float(amount) for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    return bundle or {"CPU": 0.001}
