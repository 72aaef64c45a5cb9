"""The worker's first process: makes the jail, starts the zygote in it, waits, and cleans up.

    python -s -S -c START <folder of the project> <options as JSON>

The zygote has imported everything that sessions need and forks one for each channel that it is sent.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from envs.sandbox import wire
from envs.sandbox.worker import guard, interpreter, kernel
from envs.sandbox.worker.jail import Jail
from envs.sandbox.worker.landlock_jail import BareJail, LandlockJail
from envs.sandbox.worker.namespaces import NamespaceJail


def main() -> NoReturn:
    """Run the backend that the command line names until the owner closes the control socket or ends."""
    options = json.loads(sys.argv[2])
    control, zygote = options["control"], 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    kernel.die_with_parent(options["owner"], signal.SIGTERM)
    jail = _jail(options)
    try:
        zygote = jail.spawn()
        if zygote == 0:
            _be_zygote(control, jail)
        os.close(control)
        os.waitpid(zygote, 0)
    except OSError as error:
        wire.send(control, {"problem": str(error)})
    finally:
        if zygote:
            with suppress(ProcessLookupError):
                os.kill(zygote, signal.SIGKILL)
            jail.release()
    sys.exit(0)


def _jail(options: dict[str, Any]) -> Jail:
    match options["backend"]:
        case "namespaces":
            return NamespaceJail(shell=options["shell"])
        case "landlock":
            return LandlockJail(Path(options["folder"]))
        case _:
            return BareJail(Path(options["folder"]))


def _be_zygote(control: int, jail: Jail) -> None:
    """Never returns."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # sessions that end leave no zombies
    try:
        jail.build()
        interpreter.preload()
        gc.freeze()
        wire.send(control, {"problem": None})
        _fork_sessions(control, jail)
    except OSError as error:
        with suppress(OSError):
            wire.send(control, {"problem": str(error)})
    finally:
        os._exit(0)


def _fork_sessions(control: int, jail: Jail) -> None:
    with socket.socket(fileno=control) as receiver:
        while True:
            data, channels, *_ = socket.recv_fds(receiver, 1, 1)
            if not data:
                return
            for channel in channels:
                if jail.fork():
                    _be_guard(channel, jail)
                os.close(channel)


def _be_guard(channel: int, jail: Jail) -> None:
    """Never returns."""
    with suppress(BaseException):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        guard.close_all_but(channel)
        guard.serve(channel, jail)
    os._exit(0)
