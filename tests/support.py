"""Running the `cacherl` command in tests, and counting what a run leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
_MARK = "CACHERL_TEST_MARK"


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(slots=True)
class MarkedProcess:
    """A command whose descendants all carry a mark in their environment, so that orphans are found too."""

    arguments: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    output: Path = Path(os.devnull)
    cwd: Path = PROJECT
    _process: subprocess.Popen[bytes] | None = None
    _shared_memory: set[Path] = field(default_factory=set)

    def start(self) -> MarkedProcess:
        self._shared_memory = _shared_memory_files()
        env = {**os.environ, **self.environment, _MARK: self.mark}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                self.arguments, cwd=self.cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        return self

    def wait(self, timeout_s: float) -> int:
        """Exit status."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"not finished after {timeout_s} s:\n{self.text()[-4000:]}") from None

    def send(self, sig: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(sig)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll until `condition`, while the command runs."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill_all()
                raise AssertionError(f"never saw {what}:\n{self.text()[-4000:]}")
            time.sleep(0.2)

    def alive(self) -> dict[int, str]:
        """Marked processes that exist now: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
        return found

    def memory_maps(self) -> list[str]:
        """What each process of the command has mapped."""
        maps = []
        for pid in self.alive():
            with contextlib.suppress(OSError):
                maps.append(Path(f"/proc/{pid}/maps").read_text())
        return maps

    def leftovers(self, grace_s: float = 15.0) -> tuple[dict[int, str], set[Path]]:
        """Processes still there after `grace_s`, and files in shared memory that were not there before and nobody else uses."""
        deadline = time.monotonic() + grace_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        used = _mapped_shared_memory()  # by other runs of the machine: this one has ended
        new = _shared_memory_files() - self._shared_memory
        return self.alive(), {file for file in new if file.exists() and file.stat().st_ino not in used}

    def kill_all(self) -> None:
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _shared_memory_files() -> set[Path]:
    return set(Path("/dev/shm").iterdir())


def _mapped_shared_memory() -> set[int]:
    """Inodes of /dev/shm that a process has mapped; a semaphore's path in its maps is not the file's."""
    number = Path("/dev/shm").stat().st_dev
    device = f"{os.major(number):02x}:{os.minor(number):02x}"
    inodes = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            rows = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
            inodes |= {int(row[4]) for row in rows if row[3] == device}
    return inodes


def train_command(config: str, *overrides: str) -> list[str]:
    """Command line of a training run."""
    return [sys.executable, "-m", "deploy", "train", "--config", f"deploy/configs/{config}.yaml", *overrides]
