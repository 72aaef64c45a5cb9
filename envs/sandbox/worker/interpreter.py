"""The process that runs an agent's code: Python and SQL, one call after another, with the variables of the calls before.

Everything here is at the mercy of that code. So it holds no secret, and the guard believes nothing that it says beyond
'this is the text to show'.
"""

from __future__ import annotations

import io
import linecache
import os
import random
import sqlite3
import struct
import sys
from typing import Any

#: Mark of the request that it answers, status, truncated, bytes of text.
ANSWER = struct.Struct(">8sc?I")
OK, FAILED, NO_MEMORY = b"o", b"f", b"m"
_SOURCE = "<code>"
_LONGEST_MESSAGE = 200
#: Separates the columns of a row.
_COLUMN = "|"


class CappedText(io.TextIOBase):
    """Standard output that keeps the first `limit` characters."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._length = 0
        self.truncated = False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        kept = text[: self._limit - self._length]
        if kept:
            self._parts.append(kept)
            self._length += len(kept)
        self.truncated = self.truncated or len(kept) < len(text)
        return len(text)

    @property
    def text(self) -> str:
        """What was written, without the last line's end."""
        return "".join(self._parts).removesuffix("\n")


class Interpreter:
    """Runs calls in one namespace and on one database, which Python code sees as `db`.

    Args:
        script: SQL that makes the tables.
        output_bytes: longest text of an answer.
    """

    def __init__(self, *, script: str, seed: int, output_bytes: int) -> None:
        self._output_bytes = output_bytes
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.executescript(script)
        self._namespace: dict[str, Any] = {"__name__": "__main__", "db": self._database}
        random.seed(seed)

    def answer(self, mark: bytes, tool: str, text: str) -> bytes:
        """Run a call and encode what to show."""
        output = CappedText(self._output_bytes)
        sys.stdout = sys.stderr = output
        status, shown = OK, ""
        try:
            if tool == "sql":
                self._query(text, output)
            else:
                exec(compile(text, _SOURCE, "exec"), self._namespace)
        except MemoryError:
            status = NO_MEMORY
        except BaseException as error:
            status, shown = FAILED, _explain(error)
        body = (shown if status == FAILED else output.text).encode(errors="replace")
        kept = body[: self._output_bytes].decode(errors="ignore").encode()
        return ANSWER.pack(mark, status, output.truncated or len(kept) < len(body), len(kept)) + kept

    def _query(self, text: str, output: CappedText) -> None:
        for row in self._database.execute(text):
            output.write(_COLUMN.join("" if value is None else str(value) for value in row) + "\n")
            if output.truncated:
                break


def serve(requests: int, answers: int, interpreter: Interpreter) -> None:
    """Answer calls until the guard is gone."""
    from envs.sandbox import wire

    while (request := wire.receive(requests)) is not None:
        wire.write_all(answers, interpreter.answer(request["mark"].encode(), request["tool"], request["text"]))


def preload() -> None:
    """Import what code often wants, once for all sessions."""
    import collections  # noqa: F401
    import csv  # noqa: F401
    import datetime  # noqa: F401
    import decimal  # noqa: F401
    import fractions  # noqa: F401
    import functools  # noqa: F401
    import itertools  # noqa: F401
    import json  # noqa: F401
    import math  # noqa: F401
    import re  # noqa: F401
    import statistics  # noqa: F401

    linecache.clearcache()
    os.environ.clear()


def _explain(error: BaseException) -> str:
    """The error's kind, message and line."""
    message, line = (error.msg, error.lineno) if isinstance(error, SyntaxError) else (str(error), _line(error))
    message = " ".join(message.split())[:_LONGEST_MESSAGE]
    text = type(error).__name__ + (f": {message}" if message else "")
    return text if line is None else f"{text}, line {line}"


def _line(error: BaseException) -> int | None:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _SOURCE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
