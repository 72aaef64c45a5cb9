"""The 'landlock' jail, where user namespaces are forbidden: Landlock for files and signals, seccomp for the rest.

Nothing can be written and no process started, so there is nothing to count and nothing to clean up. What is weaker than with
namespaces: names and sizes of files can be probed, and the session runs as the owner's user, without any capability.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from envs.sandbox.worker import kernel, landlock, seccomp
from envs.sandbox.worker.jail import LIBRARIES, Limits, set_limits, standard_library, write_files


class LandlockJail:
    """See the module.

    Args:
        folder: of the sessions' files; removed in the end.
    """

    def __init__(self, folder: Path) -> None:
        self._sessions = folder

    def spawn(self) -> int:
        kernel.machine()
        found = landlock.version()
        if found < landlock.NEEDED:
            raise OSError(f"the kernel's Landlock has version {found}, {landlock.NEEDED} is needed (Linux 6.12)")
        return fork_bound()

    def build(self) -> None:
        """Sessions share nothing."""

    def fork(self) -> bool:
        return fork_bound() == 0

    def furnish(self, limits: Limits, files: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=self._sessions))
        write_files(self._folder, files)
        os.chdir(self._folder)

    def confine(self, limits: Limits, *, processes: bool) -> None:
        if processes:
            raise OSError("the landlock jail starts no programs")
        set_limits(limits)
        kernel.forbid_new_privileges()
        kernel.drop_capabilities()
        libraries = [path for path in LIBRARIES if Path(path).exists()]
        landlock.confine([standard_library(), *libraries, "/dev/null", "/dev/urandom", str(self._folder)])
        seccomp.install(processes=False)

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def release(self) -> None:
        shutil.rmtree(self._sessions, ignore_errors=True)


class BareJail(LandlockJail):
    """The 'rlimit' backend: resource limits and nothing else. Code can do what its owner can."""

    def spawn(self) -> int:
        return fork_bound()

    def confine(self, limits: Limits, *, processes: bool) -> None:
        set_limits(limits)


def fork_bound() -> int:
    """Fork a child that dies with this process."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        kernel.die_with_parent(parent)
    return child
