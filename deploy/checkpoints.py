"""CheckpointStore: the folder of a run's checkpoints. One that has its name is complete, whenever the run was killed.

::

    step-00000040/            renamed from .step-00000040.partial once everything below is on disk
        learner-0.pt ...      each rank's optimizer, generators and, under ZeRO 3, weights
        policy/               the weights as a Hugging Face folder
        driver.json           position in the tasks, counters, curriculum: every `Stateful` of the driver
        manifest.json         version, held-out success, pool, and size and checksum of every file
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cacherl.durable import WrittenFile, describe, rename_durably, sync_folder, write_durably
from cacherl.errors import CheckpointError, boundary

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
DRIVER = "driver.json"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        folder: where it is.
        version: learner version, number of optimizer steps since the warm start.
        success: held-out success at that version, in [0, 1]; None when it was not evaluated.
        created_at: unix seconds.
        ledger: the pool's identity and how far it had been used.
        files: everything in it but the manifest.
    """

    folder: Path
    version: int
    success: float | None
    created_at: float
    ledger: Mapping[str, Any]
    files: tuple[WrittenFile, ...]

    @property
    def nbytes(self) -> int:
        """Size, in bytes."""
        return sum(file.nbytes for file in self.files)

    def driver_state(self) -> dict[str, Any]:
        """What the driver's parts had saved.

        Raises:
            CheckpointError: the file is damaged.
        """
        entry = next(file for file in self.files if file.name == DRIVER)
        state: dict[str, Any] = json.loads(entry.verify(self.folder).read_text("utf-8"))
        return state


class CheckpointStore:
    """Checkpoints of one run.

    Args:
        folder: holds nothing else; made with the first checkpoint.
        keep_last, keep_best: how many of the newest and of the most successful stay.
    """

    def __init__(self, folder: Path, *, keep_last: int, keep_best: int) -> None:
        self._folder = folder
        self._keep_last = keep_last
        self._keep_best = keep_best

    def complete(self) -> list[Checkpoint]:
        """All complete checkpoints, oldest first; one that somebody has damaged since is left out, with a warning."""
        found = []
        for folder in self._folders():
            try:
                found.append(read_checkpoint(folder))
            except CheckpointError as error:
                logger.warning("%s", error)
        return found

    def newest(self) -> Checkpoint | None:
        """The checkpoint of the highest version.

        Raises:
            CheckpointError: it has been damaged: whether to go on from an earlier one is not for the program to decide.
        """
        folders = self._folders()
        return read_checkpoint(folders[-1]) if folders else None

    def best(self) -> Checkpoint | None:
        """The complete checkpoint of the highest held-out success; of equals the newer."""
        return next(iter(_ranked(self.complete())), None)

    def stage(self, version: int) -> Path:
        """An empty folder for the parts of a new checkpoint; what an earlier run left unfinished is removed.

        Raises:
            CheckpointError: it cannot be made.
        """
        staging = self._folder / f".{_folder_name(version)}.partial"
        with boundary(CheckpointError, f"making room for the checkpoint of version {version}"):
            for leftover in self._folder.glob(".step-*.*") if self._folder.is_dir() else ():
                shutil.rmtree(leftover)
            staging.mkdir(parents=True)
        return staging

    def commit(
        self,
        staging: Path,
        version: int,
        *,
        success: float | None,
        ledger: Mapping[str, Any],
        driver: Mapping[str, Any],
        files: Sequence[WrittenFile],
    ) -> Checkpoint:
        """Complete a staged checkpoint and remove those that are no longer kept.

        Raises:
            CheckpointError: a file cannot be written.
        """
        with boundary(CheckpointError, f"completing the checkpoint of version {version}"):
            _write_json(staging / DRIVER, driver)
            manifest = {
                "schema": SCHEMA_VERSION,
                "version": version,
                "success": success,
                "created_at": time.time(),
                "ledger": dict(ledger),
                "files": [asdict(file) for file in [*files, describe(staging, DRIVER)]],
            }
            _write_json(staging / MANIFEST, manifest)
            sync_folder(staging)
            target = self._folder / _folder_name(version)
            self._retire(target)
            rename_durably(staging, target)
            self._prune()
        return read_checkpoint(target)

    def is_new_best(self, success: float) -> bool:
        """Whether a checkpoint of this held-out success would be kept for it, and is better than the worst that is."""
        best = _ranked(self.complete())[: self._keep_best]
        return self._keep_best > 0 and (len(best) < self._keep_best or success > (best[-1].success or 0.0))

    def _folders(self) -> list[Path]:
        """Folders with the name of a checkpoint, by version."""
        names = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted((path for path in names if _NAME.fullmatch(path.name)), key=lambda path: int(path.name.partition("-")[2]))

    def _prune(self) -> None:
        checkpoints = self.complete()
        kept = {c.version for c in [*checkpoints[-self._keep_last :], *_ranked(checkpoints)[: self._keep_best]]}
        for checkpoint in checkpoints:
            if checkpoint.version not in kept:
                self._retire(checkpoint.folder)

    def _retire(self, folder: Path) -> None:
        """Delete a checkpoint in such a way that half of it never has its name."""
        if folder.exists():
            retired = folder.with_name(f".{folder.name}.retired")
            folder.rename(retired)
            shutil.rmtree(retired)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the manifest of a complete checkpoint.

    Raises:
        CheckpointError: there is none, it is not readable, a file has another size, or a later program made it.
    """
    with boundary(CheckpointError, f"{folder} is not a complete checkpoint"):
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        if manifest["schema"] != SCHEMA_VERSION:
            raise CheckpointError(f"{folder} has schema {manifest['schema']}, this program reads {SCHEMA_VERSION}")
        files = tuple(WrittenFile(**entry) for entry in manifest["files"])
    for file in files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.nbytes:
            raise CheckpointError(f"{path} is missing or has not its {file.nbytes} bytes; delete the folder {folder.name}")
    return Checkpoint(
        folder=folder,
        version=manifest["version"],
        success=manifest["success"],
        created_at=manifest["created_at"],
        ledger=manifest["ledger"],
        files=files,
    )


def _ranked(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Those that were evaluated, most successful first; of equals the newer."""
    evaluated = [checkpoint for checkpoint in checkpoints if checkpoint.success is not None]
    return sorted(evaluated, key=lambda checkpoint: (checkpoint.success, checkpoint.version), reverse=True)


def _folder_name(version: int) -> str:
    return f"step-{version:08d}"


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_durably(path, lambda file: file.write(json.dumps(value, indent=1).encode()))
