"""RankActor: a `LearnerWorker` as a Ray actor."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import ray

from cacherl.config import RunConfig
from cacherl.policy import WeightManifest
from cacherl.secrets import Secrets
from learner.quiet import log_to


class RankActor:
    """One learner process. Its output goes to `log_path`; methods are those of `LearnerWorker`, called through `call`."""

    def __init__(
        self,
        config: RunConfig,
        model: Path,
        *,
        replay_url: str,
        replay_namespace: str,
        rank: int,
        world: int,
        log_path: Path,
        secrets: Secrets,
    ) -> None:
        log_to(log_path)
        secrets.install()
        # Imported here, after the streams are redirected, because importing deepspeed already prints.
        from learner.worker import LearnerWorker

        self._worker = LearnerWorker(
            config,
            model,
            replay_url=replay_url,
            replay_namespace=replay_namespace,
            rank=rank,
            world=world,
            folder=log_path.parent,
        )

    def endpoint(self) -> tuple[str, int]:
        """(address, free port) of this process's node, for rank 0 to listen on."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the worker."""
        return getattr(self._worker, method)(*args)

    def publish(self, version: int) -> tuple[WeightManifest, list[ray.ObjectRef]] | None:
        """As `LearnerWorker.publish`, with the buffer in Ray's object store; its reference is in a list, so that Ray
        hands on the reference instead of the bytes."""
        published = self._worker.publish(version)
        return None if published is None else (published[0], [ray.put(published[1])])
