"""`Recording`: recorded tool results as a file of JSON lines, which any number of processes of one machine append to.

The first line states the form; every other one is a result (`Recorded.dump`) or a listing of a toolkit's tools. Of two lines
for one call the later counts.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cacherl.errors import ConfigError
from envs.jsontext import compact
from envs.tool_cache.entry import Recorded

logger = logging.getLogger(__name__)

HEADER = compact({"cacherl_tool_results": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a recording holds, the last of it where it holds more than may be kept."""

    results: tuple[Recorded, ...] = ()
    listings: dict[str, str]


class Recording:
    """A recording at `path`, of which the last `keep` results matter: a file of twice as many lines is rewritten with those.

    Args:
        needed: it must exist, and is not written to.

    Raises:
        ConfigError: it is needed and does not exist, or else cannot be written to.
    """

    def __init__(self, path: Path, *, keep: int, needed: bool = False) -> None:
        self._path = path.expanduser()
        self._keep = keep
        if needed and not self._path.is_file():
            raise ConfigError(f"env.tool_cache.path: no recording at {self._path}; make one with env.tool_cache.mode=record")
        self._lines = 0
        if not needed:
            self._prove_writable()

    def _prove_writable(self) -> None:
        """Now, and not when the first result is lost."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        except OSError as error:
            raise ConfigError(f"env.tool_cache.path: {self._path} cannot be written to: {error}") from error
        if not regular:
            raise ConfigError(f"env.tool_cache.path: {self._path} is no file")

    def read(self) -> Content:
        """Everything that matters in it.

        Raises:
            ConfigError: it is no recording, or damaged before its last line; names the line.
        """
        if not self._path.is_file():
            return Content(listings={})
        lines = self._path.read_bytes().split(b"\n")
        self._lines = len(lines)
        if lines == [b""]:
            return Content(listings={})
        if lines[0].decode(errors="replace") != HEADER:
            raise ConfigError(f"env.tool_cache.path: {self._path} is not a recording of tool results ({HEADER})")
        listings: dict[str, str] = {}
        results: dict[str, Recorded] = {}
        for number, line in enumerate(lines[1:], start=2):
            if line:
                self._take(line, number, number == len(lines), results, listings)
        return Content(results=tuple(results.values())[-self._keep :], listings=listings)

    def append(self, line: str) -> None:
        """Add a result."""
        with self._locked() as descriptor:
            self._write(descriptor, line)
        if self._lines > 2 * self._keep + 16:
            self._compact()

    def append_listing(self, toolkit: str, tools: str) -> None:
        """Add the listing of a toolkit's tools."""
        with self._locked() as descriptor:
            self._write(descriptor, compact({"toolkit": toolkit, "tools": tools}))

    def _take(self, line: bytes, number: int, last: bool, results: dict[str, Recorded], listings: dict[str, str]) -> None:
        try:
            if line.startswith(b'{"toolkit":'):
                toolkit, tools = _listing(line)
                listings[toolkit] = tools
                return
            recorded = Recorded.load(line)
        except ValueError as error:
            if last:  # whoever wrote it was killed
                logger.warning("the last line of %s is cut off: %s", self._path, error)
                return
            raise ConfigError(f"env.tool_cache.path: line {number} of {self._path}: {error}") from error
        exact = recorded.key.exact
        results.pop(exact, None)
        results[exact] = recorded

    @contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = self._open()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        """The file, locked; again if it was rewritten while waiting for the lock."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == self._path.stat().st_ino:
                    return descriptor
            os.close(descriptor)

    def _write(self, descriptor: int, line: str) -> None:
        size = os.fstat(descriptor).st_size
        text = f"{line}\n" if size else f"{HEADER}\n{line}\n"
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # after a line that was cut off
            os.ftruncate(descriptor, _last_newline(descriptor, size) + 1)
        os.write(descriptor, text.encode())
        self._lines += 1

    def _compact(self) -> None:
        """Put a file with what matters in the place of this one, whole or not at all."""
        with self._locked():
            content = self.read()
            lines = [HEADER, *(compact({"toolkit": name, "tools": tools}) for name, tools in content.listings.items())]
            lines += [recorded.dump() for recorded in content.results]
            fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            fresh.write_text("".join(f"{line}\n" for line in lines))
            fresh.replace(self._path)
            self._lines = len(lines)


def _listing(line: bytes) -> tuple[str, str]:
    """Name of a toolkit and description of its tools.

    Raises:
        ValueError: the line does not state them.
    """
    value = json.loads(line)
    toolkit, tools = value.get("toolkit"), value.get("tools")
    if not isinstance(toolkit, str) or not isinstance(tools, str):
        raise ValueError("not a listing of tools")
    return toolkit, tools


def _last_newline(descriptor: int, size: int) -> int:
    """Where the last complete line ends; the header is one."""
    block, position = 65536, size
    while position > 0:
        start = max(0, position - block)
        found = os.pread(descriptor, position - start, start).rfind(b"\n")
        if found >= 0:
            return start + found
        position = start
    return -1
