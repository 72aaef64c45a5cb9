"""Checkpointer: takes the run's checkpoints while it trains, and brings a run back to one."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cacherl.errors import DeadlineExceeded
from cacherl.run_settings import CheckpointSection
from cacherl.stateful import Stateful, collect, restore
from deploy.checkpoints import Checkpoint, CheckpointStore
from learner.checkpoint import take_reports
from learner.group import LearnerGroup
from replay_service.store import Replay

logger = logging.getLogger(__name__)

_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A checkpoint that the learner is writing; `driver` and `ledger` are of the moment of its copy."""

    version: int
    success: float | None
    staging: Path
    driver: Mapping[str, Any]
    ledger: Mapping[str, Any]
    begun: float


@dataclass(slots=True, kw_only=True)
class Checkpointer:
    """At most one checkpoint is being written at a time; the next one waits for it.

    Args:
        parts: what of the driver belongs to a checkpoint, by name.
        world: number of learner ranks.
        deadline_s: seconds that one may take.
    """

    settings: CheckpointSection
    store: CheckpointStore
    learner: LearnerGroup
    replay: Replay
    namespace: str
    parts: Mapping[str, Stateful]
    world: int
    deadline_s: float
    _writing: asyncio.Task[None] | None = None
    _metrics: dict[str, float] = field(default_factory=dict)

    async def after_update(self, version: int, *, success: float | None, last: bool) -> None:
        """Take a checkpoint if one is due at `version`.

        Args:
            success: held-out success at this version, None without an evaluation.
            last: no update follows.

        Raises:
            CheckpointError: this one, or the one before, cannot be written.
        """
        if self._writing is not None and self._writing.done():
            await self.finish()
        every = self.settings.every
        if every == 0:
            return
        best = success is not None and await asyncio.to_thread(self.store.is_new_best, success)
        if last or best or version % every == 0:
            await self.take(version, success)

    async def take(self, version: int, success: float | None) -> None:
        """Take a checkpoint now; returns once the learner may go on.

        Raises:
            CheckpointError: it, or the one before, cannot be written.
        """
        begun = time.monotonic()
        await self.finish()
        stats = await asyncio.to_thread(self.replay.stats)
        ledger = {"namespace": self.namespace, "inserted": stats.inserted, "sampled": stats.sampled, "groups": stats.groups}
        driver = copy.deepcopy(collect(self.parts))
        staging = await asyncio.to_thread(self.store.stage, version)
        pending = _Pending(version=version, success=success, staging=staging, driver=driver, ledger=ledger, begun=begun)
        await self.learner.snapshot(staging)
        self._writing = asyncio.create_task(self._complete(pending))
        if not self.settings.asynchronous:
            await self.finish()
        self._metrics["time/checkpoint"] = time.monotonic() - begun

    async def finish(self) -> None:
        """Wait until the checkpoint that is being written is complete.

        Raises:
            CheckpointError: it cannot be written.
            DeadlineExceeded: it is not within `deadline_s`.
        """
        if self._writing is not None:
            await self._writing
            self._writing = None

    def drain(self) -> dict[str, float]:
        """'checkpoint/*' and 'time/checkpoint' of what happened since the last call."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    async def resume(self, checkpoint: Checkpoint) -> int:
        """Bring the learner, which has loaded the start model, and the driver's parts to `checkpoint`; returns its version.

        Raises:
            CheckpointError: it is damaged or was made with other settings.
        """
        state = await asyncio.to_thread(checkpoint.driver_state)
        version = await self.learner.restore(checkpoint.folder, checkpoint.files)
        restore(self.parts, state, where=str(checkpoint.folder))
        return version

    async def _complete(self, pending: _Pending) -> None:
        deadline = time.monotonic() + self.deadline_s
        while (files := await asyncio.to_thread(take_reports, pending.staging, self.world)) is None:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"the checkpoint of version {pending.version} to be written", self.deadline_s)
            await asyncio.sleep(_POLL_S)
        checkpoint = await asyncio.to_thread(
            self.store.commit,
            pending.staging,
            pending.version,
            success=pending.success,
            ledger=pending.ledger,
            driver=pending.driver,
            files=files,
        )
        logger.info("checkpoint of version %d complete in %s", checkpoint.version, checkpoint.folder)
        self._metrics |= {
            "checkpoint/version": float(checkpoint.version),
            "checkpoint/bytes": float(checkpoint.nbytes),
            "checkpoint/seconds": time.monotonic() - pending.begun,
        }
