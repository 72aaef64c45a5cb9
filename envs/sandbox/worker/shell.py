"""One shell command: in a pid namespace of its own, so that when the shell ends, so does everything that it started."""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import time
from contextlib import suppress

from envs.sandbox.worker import kernel
from envs.sandbox.worker.child import OwnerGone
from envs.sandbox.worker.jail import Jail, Limits, silence
from envs.sandbox.worker.reply import CRASH, EXCEPTION, OK, TIMEOUT, Reply

_PROGRAM = "/bin/sh"
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
_LONGEST_MESSAGE = 200


def run(command: str, jail: Jail, limits: Limits, channel: int) -> Reply:
    """Run `command` in the session's folder; standard output and errors together are the reply's text.

    Raises:
        OwnerGone: nobody waits for the reply.
    """
    output, write = os.pipe()
    guard = os.getpid()
    parent = os.fork()
    if parent == 0:
        _be_parent(command, jail, limits, guard, write)
    os.close(write)
    watch = os.pidfd_open(parent)
    try:
        data, finished = _collect(output, watch, channel, limits)
    finally:
        with suppress(ProcessLookupError):
            os.kill(parent, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1])
        os.close(output)
        os.close(watch)
    text = data[: limits.output_bytes].decode(errors="replace").removesuffix("\n")
    if not finished:
        return Reply(kind=TIMEOUT)
    if status == 0:
        return Reply(kind=OK, text=text, truncated=len(data) > limits.output_bytes)
    if status < 0 or status > 128:
        return Reply(kind=CRASH)
    return Reply(kind=EXCEPTION, text=f"exit status {status}: {text[-_LONGEST_MESSAGE:]}".rstrip(": "))


def _collect(output: int, watch: int, channel: int, limits: Limits) -> tuple[bytes, bool]:
    """The output, a little more than allowed at most, and whether the shell ended in time."""
    deadline = time.monotonic() + limits.wall_s
    waiting = {output, watch, channel}
    data = b""
    while waiting != {channel}:
        left = deadline - time.monotonic()
        ready = select.select(waiting, [], [], left)[0] if left > 0 else []
        if channel in ready:
            raise OwnerGone
        if not ready:
            return data, False
        if output in ready:
            part = os.read(output, 65536)
            data = (data + part)[: limits.output_bytes + 1]
            if not part:
                waiting.discard(output)
        elif watch in ready:
            waiting.discard(watch)
    return data, True


def _be_parent(command: str, jail: Jail, limits: Limits, guard: int, write: int) -> None:
    """Start the shell as pid 1 of a new namespace, wait for it and end as it did; on SIGTERM, end it first."""
    status = 125
    with suppress(BaseException):
        kernel.die_with_parent(guard)
        kernel.unshare(kernel.NEWPID)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        shell = os.fork()
        if shell == 0:
            _be_shell(command, jail, limits, write)
        os.close(write)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(shell, signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        code = os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1])
        status = code if code >= 0 else 128 - code
    os._exit(status)


def _be_shell(command: str, jail: Jail, limits: Limits, write: int) -> None:
    with suppress(BaseException):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.dup2(write, 1)
        os.dup2(write, 2)
        silence(1, 2)
        seconds = math.ceil(limits.cpu_s)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        jail.confine(limits, processes=True)
        kernel.die_with_parent(0)
        os.execve(_PROGRAM, ["sh", "-c", command], _ENVIRONMENT)
    os._exit(126)
