"""Fsync of a server's append-only file once a second, by us instead of by the server.

With its own ``appendfsync everysec`` a server holds back writes, for up to two seconds, while an earlier fsync is still under
way, but acknowledges them: killed in that moment it loses them. With ``appendfsync no`` it hands every write to the kernel
before it answers, which is what survives its death; what survives the machine's is then decided here.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

logger = logging.getLogger(__name__)


class FileSynchronizer:
    """A thread that fsyncs the append-only files below a folder when they have changed.

    Args:
        directory: the server's; it keeps ``appendonlydir/*.aof``, before Redis 7 ``*.aof``.
    """

    def __init__(self, directory: Path, *, interval_s: float = 1.0) -> None:
        self._directory = directory
        self._interval_s = interval_s
        self._synced: dict[Path, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-fsync", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Sync what is left and end."""
        self._stopping.set()
        self._thread.join()
        self.sync()

    def sync(self) -> int:
        """Fsync the files that have grown since the last time; returns how many. A failure is logged and tried again."""
        changed = 0
        for path in [*self._directory.glob("*.aof"), *self._directory.glob("appendonlydir/*.aof")]:
            try:
                size = path.stat().st_size
                if self._synced.get(path) != size:
                    _fsync(path)
                    self._synced[path] = size
                    changed += 1
            except FileNotFoundError:  # a rewrite has replaced it
                self._synced.pop(path, None)
            except OSError as error:
                logger.warning("cannot fsync the replay server's file %s: %s", path, error)
        return changed

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self.sync()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
