"""One rank's share of a checkpoint: a copy of its state, written while training goes on, and read back.

A rank's file holds plain trees of tensors, numbers and strings only, so that it is read without unpickling objects.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cacherl.durable import WrittenFile, describe, write_durably
from cacherl.errors import CheckpointError, boundary

logger = logging.getLogger(__name__)

#: Folder of the whole policy inside a checkpoint: a Hugging Face model.
POLICY_FOLDER = "policy"


def state_file(rank: int) -> str:
    """Name of a rank's file inside a checkpoint."""
    return f"learner-{rank}.pt"


def copied(tree: Any) -> Any:
    """A deep copy of a state whose tensors are on the CPU and share no memory with the original.

    Raises:
        CheckpointError: the state holds an object that is neither a tensor nor plain data.
    """
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, Mapping):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copied(value) for value in tree)
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise CheckpointError(f"a checkpoint cannot hold a {type(tree).__name__}: {tree!r:.80}")


class StateWriter:
    """Writes one checkpoint at a time, in a thread of its own, and leaves a report of it in the checkpoint's folder.

    The driver reads the report, so that a checkpoint is completed while the rank is busy with an update.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    def start(self, folder: Path, write: Callable[[], list[WrittenFile]], *, wait: bool) -> None:
        """Begin to `write` into `folder`.

        Args:
            wait: return only when it is done.
        """
        self._running = self._thread.submit(self._report, folder, write)
        if wait:
            self._running.result()

    def close(self) -> None:
        """Let a write end."""
        self._thread.shutdown(wait=True)

    def _report(self, folder: Path, write: Callable[[], list[WrittenFile]]) -> None:
        report: dict[str, Any] = {}
        try:
            report["files"] = [asdict(file) for file in write()]
        except Exception as error:  # whatever it is, the driver must be told
            logger.exception("a checkpoint could not be written")
            report["error"] = f"learner rank {self._rank} could not write {folder}: {error!r}"
        partial, path = folder / f"{_report_name(self._rank)}.partial", folder / _report_name(self._rank)
        try:
            partial.write_text(json.dumps(report), "utf-8")
            partial.rename(path)
        except OSError:  # a full disk may have room for an empty file still
            path.touch()
            raise


def take_reports(folder: Path, world: int) -> list[WrittenFile] | None:
    """The files that all ranks have written into `folder`, whose reports are removed; None while one of them is writing.

    Raises:
        CheckpointError: a rank could not write.
    """
    paths = [folder / _report_name(rank) for rank in range(world)]
    if not all(path.is_file() for path in paths):
        return None
    texts = [path.read_text("utf-8") for path in paths]
    if "" in texts:
        raise CheckpointError(f"learner rank {texts.index('')} could not write {folder}, nor say why: is the disk full?")
    reports = [json.loads(text) for text in texts]
    for report in reports:
        if "error" in report:
            raise CheckpointError(report["error"])
    for path in paths:
        path.unlink()
    return [WrittenFile(**entry) for report in reports for entry in report["files"]]


def _report_name(rank: int) -> str:
    return f".learner-{rank}.json"


def write_state(folder: Path, rank: int, state: Mapping[str, Any]) -> WrittenFile:
    """Write a rank's file into `folder`."""
    name = state_file(rank)
    write_durably(folder / name, lambda file: torch.save(dict(state), file))
    return describe(folder, name)


def read_state(folder: Path, rank: int, files: Sequence[WrittenFile]) -> dict[str, Any]:
    """A rank's state.

    Raises:
        CheckpointError: the checkpoint has no file for this rank, or it is damaged.
    """
    path = verified(folder, state_file(rank), files)
    with boundary(CheckpointError, f"reading {path}"):
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def verified(folder: Path, name: str, files: Sequence[WrittenFile]) -> Path:
    """Path of the file `name` of a checkpoint, its content checked.

    Raises:
        CheckpointError: it is no part of the checkpoint, or damaged.
    """
    for file in files:
        if file.name == name:
            return file.verify(folder)
    raise CheckpointError(f"{folder} has no {name}: it was made by another number of ranks or another kind of learner")


class RandomState:
    """The generators of torch, on the CPU and on this rank's GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state_dict(self) -> dict[str, Any]:
        """The states of both; that of the GPU is None without one."""
        cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was taken."""
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self._device)
