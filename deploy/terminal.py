"""The terminal belongs to the run's own panel; whatever libraries print goes to a log file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from cacherl.process import redirect_output


@contextlib.contextmanager
def own_terminal(log: Path) -> Iterator[Console]:
    """A console on the process's stdout, while its stdout and stderr themselves (C libraries included) go to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    stdout, stderr = os.dup(1), os.dup(2)
    with os.fdopen(os.dup(stdout), "w") as terminal:
        redirect_output(log)
        try:
            yield Console(file=terminal)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.close(stdout)
            os.close(stderr)
