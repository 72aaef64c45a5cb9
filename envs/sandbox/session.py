"""`Session`: the owner's side of one episode's jailed processes."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

from cacherl.errors import EnvironmentFault
from envs.sandbox import wire
from envs.sandbox.worker.reply import CRASH, KINDS, Reply

_ATTEMPTS = 2
#: The reply of a session whose guard has died.
_GONE = Reply(kind=CRASH, lost=True)


class Session:
    """Runs calls one after another; begins with the first.

    Args:
        connect: makes a channel to a fresh session.
        tools: names of those that it may run.
        opening: the first frame: limits, files, script, seed.
        patience_s: for a reply; the guard keeps to the limits, so this ends only a session whose guard does not answer.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        *,
        tools: tuple[str, ...],
        opening: Mapping[str, Any],
        patience_s: float,
    ) -> None:
        self._connect = connect
        self._tools = tools
        self._opening = dict(opening)
        self._patience_s = patience_s
        self._channel: socket.socket | None = None
        self._ready = False

    async def run(self, tool: str, text: str) -> Reply:
        """Run `text` with `tool`.

        A reply that is `lost` ended the session; the next call begins another.

        Raises:
            ValueError: the sandbox has no such tool.
            EnvironmentFault: no session can be begun, or its guard does not answer.
        """
        self._require(tool)
        try:
            async with asyncio.timeout(self._patience_s):
                channel = await self._begun()
                try:
                    await asyncio.get_running_loop().sock_sendall(channel, wire.encode({"tool": tool, "text": text}))
                    return self._settle(_read(await _message(channel)))
                except ConnectionError:
                    return self._settle(_GONE)
        except (TimeoutError, wire.FrameError) as error:
            self._drop()
            raise EnvironmentFault(f"the sandbox's guard does not answer within {self._patience_s:g} s: {error}") from error
        except asyncio.CancelledError:
            self._drop()
            raise

    async def _begun(self) -> socket.socket:
        """The channel of a session whose guard is ready. A worker that dies just now is given one more chance."""
        for _ in range(_ATTEMPTS):
            try:
                channel = self._channel or self._open()
                if not self._ready:
                    await _message(channel)
                    self._ready = True
            except ConnectionError:
                self._drop()
            else:
                return channel
        raise EnvironmentFault("the sandbox cannot begin a session: no process, or no namespace, is to be had any more")

    def run_blocking(self, tool: str, text: str) -> Reply:
        """The only call of a session, without an event loop.

        Raises:
            EnvironmentFault: as `run`.
        """
        self._require(tool)
        try:
            channel = self._open()
            channel.setblocking(True)
            channel.sendall(wire.encode({"tool": tool, "text": text}))
            ready, reply = (_receive(channel, self._patience_s) for _ in range(2))
        except (OSError, wire.FrameError) as error:
            raise EnvironmentFault(f"the sandbox could not run a session: {error}") from error
        finally:
            self._drop()
        if ready is None:
            raise EnvironmentFault("the sandbox could not begin a session")
        return _GONE if reply is None else _read(reply)

    def close(self) -> None:
        """End the session's processes; repeated calls are harmless."""
        self._drop()

    def _require(self, tool: str) -> None:
        if tool not in self._tools:
            raise ValueError(f"the sandbox has the tools {', '.join(self._tools)}, not {tool!r}")

    def _open(self) -> socket.socket:
        self._channel, self._ready = self._connect(), False
        self._channel.settimeout(self._patience_s)
        self._channel.sendall(wire.encode(self._opening))
        self._channel.setblocking(False)
        return self._channel

    def _settle(self, reply: Reply) -> Reply:
        if reply.lost:
            self._drop()
        return reply

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _receive(channel: socket.socket, patience_s: float) -> dict[str, Any] | None:
    if not select.select([channel], [], [], patience_s)[0]:
        raise TimeoutError(f"no answer within {patience_s:g} s")
    return wire.receive(channel.fileno())


async def _message(channel: socket.socket) -> dict[str, Any]:
    header = await _exactly(channel, wire.HEADER.size)
    return wire.decode(await _exactly(channel, wire.body_length(header)))


async def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(channel, size - len(data))
        if not part:
            raise ConnectionResetError("the session has ended")
        data += part
    return data


def _read(message: dict[str, Any]) -> Reply:
    kind, text = message.get("kind"), message.get("text")
    if kind not in KINDS or not isinstance(text, str):
        raise wire.FrameError("not a reply")
    return Reply(kind=kind, text=text, truncated=bool(message.get("truncated")), lost=bool(message.get("lost")))
