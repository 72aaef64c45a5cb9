"""Where the sockets between vLLM's processes have their names: a folder that is removed as soon as they are connected."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

#: vLLM makes them in the folder that this variable names, each called by a UUID.
_VARIABLE = "VLLM_RPC_BASE_PATH"
_PREFIX = "cacherl-vllm-"
#: Characters of a socket's path (`sun_path` less its end), and those that '/' and a UUID take.
_LONGEST, _NAME = 107, 37


def name_sockets_apart() -> Path:
    """Make a folder for the sockets of the engine that this process starts next.

    It is in the folder for temporary files, or in /tmp where that one's path is too long for a socket.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(os.fsencode(folder)) + _NAME > _LONGEST:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    os.environ[_VARIABLE] = str(folder)
    return folder


def unname_sockets() -> None:
    """Remove that folder, if there is one: a connected socket needs no name, and killed processes would leave it behind."""
    folder = Path(os.environ.get(_VARIABLE, ""))
    if folder.name.startswith(_PREFIX):
        del os.environ[_VARIABLE]  # processes that start later must not look for it
        shutil.rmtree(folder, ignore_errors=True)
