"""Files that survive the machine: written, checksummed and fsynced before they count."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from cacherl.errors import CheckpointError

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file on disk.

    Attributes:
        name: path relative to the folder that it belongs to.
        nbytes: its size, in bytes.
        crc32: of its content, hex.
    """

    name: str
    nbytes: int
    crc32: str

    def verify(self, folder: Path) -> Path:
        """The file's path, once its content has been read and compared.

        Raises:
            CheckpointError: missing, of another size, or of another content.
        """
        path = folder / self.name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing")
        found = describe(folder, self.name)
        if found != self:
            raise CheckpointError(
                f"{path} is damaged: {found.nbytes} bytes with checksum {found.crc32}, written were {self.nbytes} with "
                f"{self.crc32}; delete the folder {folder.name} to go on from an earlier checkpoint"
            )
        return path


def describe(folder: Path, name: str) -> WrittenFile:
    """Read `folder`/`name` and say what is there."""
    checksum, size = 0, 0
    with (folder / name).open("rb") as file:
        while block := file.read(_BLOCK):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return WrittenFile(name=name, nbytes=size, crc32=f"{checksum:08x}")


def write_durably(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a new file at `path` and wait until it is on disk."""
    with path.open("wb") as file:
        write(cast(IO[bytes], file))
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until `folder`'s entries, and the content of every file below it, are on disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Give the complete folder `source` its final name, which must be free; afterwards it has it even after a power cut."""
    source.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
