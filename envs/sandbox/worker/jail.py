"""What a backend does, on the worker's side, and the limits that all of them set."""

from __future__ import annotations

import os
import resource
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Shared libraries, as the loader finds them.
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What code may use. Fields as in `cacherl.environment_settings.SandboxSection`."""

    cpu_s: float
    wall_s: float
    memory_mb: int
    output_bytes: int
    processes: int
    files: int
    file_mb: int
    descriptors: int


class Jail(Protocol):
    """A backend. The launcher calls `spawn`, the zygote `build` and `fork`, a session's guard `furnish` and `clear`, and the
    process that is about to run code `confine`. All raise `OSError` when the kernel refuses."""

    def spawn(self) -> int:
        """Fork the zygote: 0 in it, its pid in the launcher."""

    def build(self) -> None:
        """Prepare what all sessions share."""

    def fork(self) -> bool:
        """Fork a session: True in its guard."""

    def furnish(self, limits: Limits, files: Mapping[str, str]) -> None:
        """Make this session's folder, with `files`, the current one."""

    def confine(self, limits: Limits, *, processes: bool) -> None:
        """Give up all rights but those of jailed code, for good; with `processes` it may start programs."""

    def clear(self) -> None:
        """Remove what the session leaves in the file system."""

    def release(self) -> None:
        """In the launcher, at the end: remove what all sessions leave."""


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write a session's files; names are plain, without a folder."""
    for name, text in files.items():
        (folder / Path(name).name).write_text(text)


def standard_library() -> str:
    """Folder of Python's standard library."""
    return str(Path(sysconfig.get_path("stdlib")).resolve())


def set_limits(limits: Limits) -> None:
    """Resource limits that any process may set for itself. CPU time is left to the guard."""
    megabyte = 2**20
    for kind, value in (
        (resource.RLIMIT_AS, limits.memory_mb * megabyte),
        (resource.RLIMIT_FSIZE, limits.file_mb * megabyte),
        (resource.RLIMIT_NOFILE, limits.descriptors),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(kind, (value, value))


def silence(*kept: int) -> None:
    """Point the standard streams nowhere and close all descriptors but `kept`."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        if stream not in kept:
            os.dup2(nowhere, stream)
    last = 3
    for descriptor in sorted(kept):
        os.closerange(last, descriptor)
        last = max(last, descriptor + 1)
    os.closerange(last, 2**30)
