"""Weight transfer through shared memory: staging on the actor's side, loading inside vLLM's worker processes.

One actor per node copies a version out of Ray's object store into an anonymous memory file; every engine on the node maps it by
its path under /proc. Nothing has a name in /dev/shm, so nothing stays behind however the run ends.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cacherl.errors import EngineError
from cacherl.policy import WeightManifest
from cacherl.process import die_with_parent

if TYPE_CHECKING:
    import torch

#: Name under which vLLM's factory knows the transfer engine.
BACKEND = "cacherl_shared_memory"


def register() -> None:
    """Entry point of `vllm.general_plugins`; vLLM calls it in every one of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "actors.weight_loader", "SharedMemoryWeightTransferEngine")
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)


class StagedWeights:
    """One version in an anonymous memory file of this process; closed, its memory is free once nobody maps it."""

    def __init__(self, manifest: WeightManifest, buffer: npt.NDArray[np.uint8]) -> None:
        if buffer.nbytes != manifest.nbytes or f"{zlib.crc32(buffer.data):08x}" != manifest.checksum:
            raise EngineError(
                f"weights of version {manifest.version} arrived damaged: size or checksum differs from the manifest"
            )
        self.version = manifest.version
        self._fd = os.memfd_create(f"cacherl-weights-{manifest.version}", os.MFD_CLOEXEC)
        try:
            view = buffer.data
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            os.close(self._fd)
            raise EngineError(f"weights of version {manifest.version} do not fit into memory: {error}") from error

    @property
    def path(self) -> str:
        """Path that any process of the same user on this node can open while this object lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryUpdate:
    """What an engine needs to load one version: plain data, sent through vLLM's own weight-transfer RPC."""

    path: str
    nbytes: int
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    offsets: list[int]

    @classmethod
    def of(cls, manifest: WeightManifest, path: str) -> SharedMemoryUpdate:
        return cls(
            path=path,
            nbytes=manifest.nbytes,
            names=[spec.name for spec in manifest.tensors],
            dtypes=[spec.dtype for spec in manifest.tensors],
            shapes=[list(spec.shape) for spec in manifest.tensors],
            offsets=[spec.offset for spec in manifest.tensors],
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) views into the mapped file; they hold the mapping alive."""
        import torch

        with Path(self.path).open("rb") as file:
            buffer = mmap.mmap(file.fileno(), self.nbytes, access=mmap.ACCESS_COPY)
        for name, dtype, shape, offset in zip(self.names, self.dtypes, self.shapes, self.offsets, strict=True):
            count = int(np.prod(shape, dtype=np.int64))
            yield name, torch.frombuffer(buffer, dtype=getattr(torch, dtype), count=count, offset=offset).view(shape)
