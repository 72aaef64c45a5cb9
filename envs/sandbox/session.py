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

#: What a guard can tell at most, besides the output itself.
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

    async def run(self, tool: str, text: str) -> Reply:
        """Run `text` with `tool`.

        A reply that is `lost` ended the session; the next call begins another.

        Raises:
            ValueError: the sandbox has no such tool.
            EnvironmentFault: no session can be begun, or its guard does not answer.
        """
        channel = self._opened(tool)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience_s):
                await loop.sock_sendall(channel, wire.encode({"tool": tool, "text": text}))
                header = await _exactly(loop, channel, wire.HEADER.size)
                body = await _exactly(loop, channel, wire.body_length(header))
            return self._settle(_read(wire.decode(body)))
        except ConnectionError:
            return self._settle(_GONE)
        except (TimeoutError, wire.FrameError) as error:
            self._drop()
            raise EnvironmentFault(f"the sandbox's guard does not answer within {self._patience_s:g} s: {error}") from error
        except asyncio.CancelledError:
            self._drop()
            raise

    def run_blocking(self, tool: str, text: str) -> Reply:
        """As `run`, for the first call of a session, without an event loop."""
        channel = self._opened(tool)
        channel.setblocking(True)
        channel.sendall(wire.encode({"tool": tool, "text": text}))
        if not select.select([channel], [], [], self._patience_s)[0]:
            raise EnvironmentFault(f"the sandbox's guard does not answer within {self._patience_s:g} s")
        try:
            message = wire.receive(channel.fileno())
        except (OSError, wire.FrameError):
            message = None
        channel.setblocking(False)
        return self._settle(_GONE if message is None else _read(message))

    def close(self) -> None:
        """End the session's processes; repeated calls are harmless."""
        self._drop()

    def _opened(self, tool: str) -> socket.socket:
        if tool not in self._tools:
            raise ValueError(f"the sandbox has the tools {', '.join(self._tools)}, not {tool!r}")
        if self._channel is None:
            channel = self._connect()
            try:
                channel.sendall(wire.encode(self._opening))
            except OSError as error:
                channel.close()
                raise EnvironmentFault(f"the sandbox could not begin a session: {error}") from error
            channel.setblocking(False)
            self._channel = channel
        return self._channel

    def _settle(self, reply: Reply) -> Reply:
        if reply.lost:
            self._drop()
        return reply

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


async def _exactly(loop: asyncio.AbstractEventLoop, channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await loop.sock_recv(channel, size - len(data))
        if not part:
            raise ConnectionResetError("the session has ended")
        data += part
    return data


def _read(message: dict[str, Any]) -> Reply:
    kind, text = message.get("kind"), message.get("text")
    if kind not in KINDS or not isinstance(text, str):
        raise wire.FrameError("not a reply")
    return Reply(kind=kind, text=text, truncated=bool(message.get("truncated")), lost=bool(message.get("lost")))
