"""`Sandbox`: a jailed worker process that forks a session for every episode.

    sandbox = open_sandbox(section)          # proves that the jail holds, or raises
    session = sandbox.session(World(files={"a.csv": "n\n1\n"}))
    reply = await session.run("python", "print(6 * 7)")      # Reply(kind="ok", text="42", ...)
    session.close()

A session is cheap (three forks), complete (its processes, files and variables end with it) and replaceable: when a call kills
its interpreter, that call is answered with the reason and the next one finds a fresh session. The worker ends with its owner.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cacherl.environment_settings import SandboxSection
from cacherl.errors import ConfigError, EnvironmentFault
from envs.jsontext import compact
from envs.sandbox import wire
from envs.sandbox.session import Session

logger = logging.getLogger(__name__)

#: Strongest first; 'rlimit' is never chosen unasked.
JAILS = ("namespaces", "landlock")

_PROJECT = Path(__file__).resolve().parent.parent.parent
# The folder is on the path only while our own modules are imported: jailed code shall not find it there.
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from envs.sandbox.worker import launcher
del sys.path[0]
launcher.main()
"""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_START_S = 60.0
_STOP_S = 5.0

#: Prints what jailed code can reach and must not.
_PROBE = """
import os
def reach(name, attempt):
    try:
        attempt()
    except (OSError, ValueError):
        return
    print(name)
def network():
    import socket
    socket.socket()
def signals():
    if os.getppid() > 1:
        os.kill(os.getppid(), 0)
    else:
        raise OSError
reach("network", network)
reach("files", lambda: open({file!r}).close())
reach("processes", os.fork)
reach("signals", signals)
"""


class BackendError(Exception):
    """A backend does not work here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a session begins with.

    Attributes:
        files: plain file name -> text, in the current folder.
        script: SQL that makes the tables.
        seed: of Python's `random`.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    script: str = ""
    seed: int = 0


class Sandbox:
    """One worker. Any number of sessions may be open at a time, from one process.

    Raises:
        BackendError: `backend` does not work here, or does not hold.
    """

    def __init__(self, section: SandboxSection, *, backend: str) -> None:
        if section.shell and backend != "namespaces":
            raise BackendError("it cannot hold a shell, as it cannot count and end processes (env.sandbox.shell)")
        self.backend = backend
        self._section = section
        self._worker = _Worker(backend, shell=section.shell)
        if backend != "rlimit":
            self._probe()

    @property
    def tools(self) -> tuple[str, ...]:
        """What its sessions can run."""
        return ("python", "sql", "shell") if self._section.shell else ("python", "sql")

    @property
    def worker_pid(self) -> int:
        """Pid of its first process; all others descend from it."""
        return self._worker.pid

    def session(self, world: World) -> Session:
        """A session that begins with its first call."""
        limits = self._section.model_dump(exclude={"backend", "shell"})
        opening = {"limits": limits, "files": dict(world.files), "script": world.script, "seed": world.seed}
        return Session(self._connect, tools=self.tools, opening=opening, patience_s=self._section.wall_s + _START_S)

    def close(self) -> None:
        """End the worker and all of its sessions."""
        self._worker.close()

    def _connect(self) -> socket.socket:
        """A channel to a new session; the worker is replaced if it has died.

        Raises:
            EnvironmentFault: it cannot be.
        """
        try:
            return self._worker.connect()
        except OSError:
            logger.warning("the sandbox's worker has died; starting another")
        self._worker.close()
        try:
            self._worker = _Worker(self.backend, shell=self._section.shell)
            return self._worker.connect()
        except (OSError, BackendError) as error:
            raise EnvironmentFault(f"the sandbox's worker cannot be restarted: {error}") from error

    def _probe(self) -> None:
        """Run code that tries to get out.

        Raises:
            BackendError: it could, or could not be run at all.
        """
        session = self.session(World())
        try:
            reply = session.run_blocking("python", _PROBE.replace("{file!r}", repr(str(Path(__file__).resolve()))))
        except EnvironmentFault as error:
            self.close()
            raise BackendError(str(error)) from error
        finally:
            session.close()
        if reply.kind != "ok" or reply.text:
            self.close()
            raise BackendError(f"a test program ended with {reply.kind!r} and reached {reply.text.split() or 'nothing'}")


class _Worker:
    """The processes of one sandbox, and the socket that new channels are sent through.

    Raises:
        BackendError: the backend does not work here.
    """

    def __init__(self, backend: str, *, shell: bool) -> None:
        self._owner = os.getpid()
        ours, theirs = socket.socketpair()
        # Removed by the launcher, and by the owner too: either may be killed before it comes to it.
        folder = None if backend == "namespaces" else tempfile.mkdtemp(prefix="cacherl-sandbox-")
        options = {
            "control": theirs.fileno(),
            "owner": self._owner,
            "backend": backend,
            "shell": shell,
            "folder": folder,
        }
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-c", _START, str(_PROJECT), compact(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=_ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt from the terminal is for the owner, whose end is the worker's
            )
        self._control = ours
        self.pid = process.pid
        self.close = weakref.finalize(self, _stop, process, ours, self._owner, folder)
        if (problem := _greeting(ours)) is not None:
            self.close()
            raise BackendError(problem)
        ours.settimeout(_START_S)

    def connect(self) -> socket.socket:
        """Have a session forked; our end of its channel.

        Raises:
            OSError: the worker is gone, or belongs to another process that this one was forked from.
        """
        if os.getpid() != self._owner:
            raise OSError("the worker belongs to another process")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"!"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours


def _greeting(control: socket.socket) -> str | None:
    """What keeps the worker from starting; None: it is ready."""
    if not select.select([control], [], [], _START_S)[0]:
        return f"its process was not ready within {_START_S:g} s"
    try:
        message = wire.receive(control.fileno())
    except (OSError, wire.FrameError) as error:
        return str(error)
    return "its process ended at once" if message is None else message["problem"]


def _stop(process: subprocess.Popen[bytes], control: socket.socket, owner: int, folder: str | None) -> None:
    control.close()
    if os.getpid() != owner:
        return
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@lru_cache(maxsize=8)
def open_sandbox(section: SandboxSection) -> Sandbox:
    """This process's sandbox with these settings.

    Raises:
        ConfigError: the backend that is asked for, or every one that 'auto' may choose, does not work here.
    """
    wanted = JAILS if section.backend == "auto" else (section.backend,)
    problems = []
    for backend in wanted:
        try:
            sandbox = Sandbox(section, backend=backend)
        except BackendError as error:
            problems.append(f"{backend}: {error}")
            continue
        level = logging.WARNING if backend == "rlimit" else logging.INFO
        logger.log(level, "code runs in the sandbox backend %r%s", backend, " without a jail" if backend == "rlimit" else "")
        return sandbox
    raise ConfigError(
        f"env.sandbox.backend {section.backend!r} does not work on this machine ({'; '.join(problems)}); allow unprivileged "
        "user namespaces, or use Linux 6.12 or newer with Landlock, or run trusted code without a jail: "
        "env.sandbox.backend=rlimit"
    )
