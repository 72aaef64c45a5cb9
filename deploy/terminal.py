"""The terminal belongs to the run's own panel; whatever libraries print goes to a log file."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from cacherl.process import redirect_output


class _Terminal(Console):
    """A console that falls silent when nobody reads it any more (`cacherl train | head`): the run goes on."""

    def on_broken_pipe(self) -> None:
        """rich's own would raise SystemExit, which ends an event loop before the run could stop in order."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def own_terminal(log: Path) -> Iterator[Console]:
    """A console on the process's stdout, while its stdout and stderr themselves (C libraries included) go to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    stdout, stderr = os.dup(1), os.dup(2)
    with os.fdopen(os.dup(stdout), "w") as terminal:
        redirect_output(log)
        try:
            yield _Terminal(file=terminal)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.close(stdout)
            os.close(stderr)


def log_to(path: Path) -> None:
    """Send this process's log records, third-party ones included, to a file instead of the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
