"""`InterpreterProcess`: the interpreter as its guard sees it: stopped between calls, watched during one, never believed."""

from __future__ import annotations

import os
import secrets
import select
import signal
import time
from contextlib import suppress

from envs.sandbox import wire
from envs.sandbox.worker import interpreter, kernel
from envs.sandbox.worker.jail import Jail, Limits, silence
from envs.sandbox.worker.reply import CRASH, EXCEPTION, MEMORY, OK, PROTOCOL, TIMEOUT, Reply

_KINDS = {interpreter.OK: OK, interpreter.FAILED: EXCEPTION, interpreter.NO_MEMORY: MEMORY}


class OwnerGone(Exception):
    """The session was closed during a call."""


class InterpreterProcess:
    """Forks the interpreter, jailed.

    Args:
        channel: the owner's end; its closing during a call ends the session.
    """

    def __init__(self, jail: Jail, limits: Limits, *, script: str, seed: int, channel: int) -> None:
        self._limits = limits
        self._channel = channel
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        guard = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_interpreter(jail, limits, guard, requests, answers, script, seed)
        os.close(requests)
        os.close(answers)
        os.set_blocking(self._answers, False)
        os.set_blocking(self._requests, False)  # what reads there need not read

    def call(self, tool: str, text: str) -> Reply:
        """Run one call. A reply that is `lost` was the interpreter's last.

        Every request carries a new mark, which its answer repeats: an answer that comes late, or that the code has left in the
        pipe for a later request, is none.

        Raises:
            OwnerGone: nobody waits for the reply.
        """
        if select.select([self._answers], [], [], 0)[0]:  # it said something unasked, or is gone
            return self._lose(PROTOCOL if os.read(self._answers, 1) else CRASH)
        mark = secrets.token_hex(4)
        self._signal(signal.SIGCONT)
        try:
            reply = self._converse(memoryview(wire.encode({"mark": mark, "tool": tool, "text": text})), mark.encode())
        except BrokenPipeError:
            return self._lose(CRASH)
        self._signal(signal.SIGSTOP)
        return reply

    def kill(self) -> None:
        """End it."""
        self._signal(signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _converse(self, request: memoryview, mark: bytes) -> Reply:
        """Hand over the request and wait for its answer, neither longer than the limits allow."""
        began, cpu_began = time.monotonic(), self._cpu()
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        poll.register(self._requests, select.POLLOUT)
        data = b""
        while True:
            left = min(self._limits.wall_s - (time.monotonic() - began), self._limits.cpu_s - (self._cpu() - cpu_began))
            if left <= 0:
                return self._lose(TIMEOUT)
            ready = {descriptor for descriptor, _ in poll.poll(max(1.0, left * 1000))}
            if self._channel in ready:
                raise OwnerGone
            if self._requests in ready:
                request = request[os.write(self._requests, request) :]
                if not request:
                    poll.unregister(self._requests)
            if self._answers in ready:
                part = os.read(self._answers, 65536)
                data += part
                if not part:
                    return self._lose(CRASH)
                if (reply := self._read(data, mark)) is not None:
                    return reply

    def _read(self, data: bytes, mark: bytes) -> Reply | None:
        """The reply in `data`, None while it is incomplete."""
        size = interpreter.ANSWER.size
        if len(data) < size:
            return None
        answered, status, truncated, length = interpreter.ANSWER.unpack(data[:size])
        if answered != mark or status not in _KINDS or length > self._limits.output_bytes or len(data) > size + length:
            return self._lose(PROTOCOL)
        if len(data) < size + length:
            return None
        return Reply(kind=_KINDS[status], text=data[size:].decode(errors="replace"), truncated=truncated)

    def _cpu(self) -> float:
        """Seconds of processor time that it has used; 0 once it is gone, which its pipe tells."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the kernel's name for another process's CPU clock
        except OSError:
            return 0.0

    def _lose(self, kind: str) -> Reply:
        self.kill()
        return Reply(kind=kind, lost=True)

    def _signal(self, sig: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, sig)


def _become_interpreter(jail: Jail, limits: Limits, guard: int, requests: int, answers: int, script: str, seed: int) -> None:
    """The child's life. It never returns into the guard's code."""
    status = 1
    with suppress(BaseException):
        silence(requests, answers)
        os.setsid()  # a process group of its own: it has nobody else to signal
        kernel.die_with_parent(guard)
        engine = interpreter.Interpreter(script=script, seed=seed, output_bytes=limits.output_bytes)
        jail.confine(limits, processes=False)
        interpreter.serve(requests, answers, engine)
        status = 0
    os._exit(status)
