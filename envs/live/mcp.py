"""MCP servers as toolkits, over stdio or streamable HTTP. Needs the package `mcp` (extra 'mcp')."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cacherl.errors import ConfigError, EnvironmentFault
from envs.base import Task, ToolSpec
from envs.live.background import BackgroundLoop
from envs.live.plain import NotPlainError, as_content, legible, read_content
from envs.observation import NoResultError
from envs.simulator import ToolResult

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, Tool

logger = logging.getLogger(__name__)

# The server becomes this process: PR_SET_PDEATHSIG survives exec, so it ends when the thread that started it does, however.
_EXEC_BOUND_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_CLOSE_S = 15.0
#: Codes of JSON-RPC errors that leave the connection as it is: no such method, invalid parameters, internal error.
_ANSWERED = (-32601, -32602, -32603)


class McpToolkit:
    """The tools of one MCP server.

    With read-only tools alone, all episodes of the process share one connection; otherwise each has a server process of its
    own, or a session at the URL, which must begin in the same state every time.

    Args:
        name: see `Toolkit`.
        server: command and arguments of a server on stdio, or the URL of one.
        env: further environment variables of the command; it inherits no more than PATH, HOME and the like.
        read_only: tools that change nothing; None: those that the server hints are.
        varying: see `Toolkit`; 'text' is the field of an answer that is text alone.
        timeout_s: seconds of a call, and of connecting.

    Raises:
        ConfigError: the package mcp is absent.
    """

    def __init__(
        self,
        name: str,
        server: Sequence[str] | str,
        *,
        env: Mapping[str, str] | None = None,
        read_only: Collection[str] | None = None,
        varying: Collection[str] = (),
        timeout_s: float = 30.0,
    ) -> None:
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise ConfigError(
                f"toolkit {name!r}: MCP servers need the package mcp; pip install '.[mcp]' in the project's folder"
            ) from None
        self.name = name
        self.varying = frozenset(varying)
        self._server = server
        self._env = dict(env or {})
        self._read_only = read_only
        self._timeout_s = timeout_s
        self._background: BackgroundLoop | None = None
        self._specs: tuple[ToolSpec, ...] | None = None
        self._shared: asyncio.Task[McpSession] | None = None

    def specs(self) -> tuple[ToolSpec, ...]:
        if self._specs is None:
            try:
                self._specs = self._loop.run_now(self._list(), 2 * self._timeout_s)
            except Exception as error:
                raise EnvironmentFault(f"toolkit {self.name!r}: {self._server} does not list its tools: {error!r}") from error
        return self._specs

    def scope(self, task: Task) -> str:
        del task
        return self.name

    async def open(self, task: Task) -> McpSession:
        del task
        if not all(spec.read_only for spec in await asyncio.to_thread(self.specs)):
            return await self._loop.run(self._connected(shared=False))
        return await self._loop.run(self._connected_once())

    async def _connected_once(self) -> McpSession:
        """The shared session; a new one if it has failed."""
        if self._shared is None or (self._shared.done() and not _alive(self._shared)):
            self._shared = asyncio.create_task(self._connected(shared=True))
        return await asyncio.shield(self._shared)

    async def _connected(self, *, shared: bool) -> McpSession:
        session = McpSession(self._loop, self._client(), timeout_s=self._timeout_s, shared=shared)
        try:
            await session.start()
        except Exception as error:
            logger.warning("toolkit %s cannot be reached: %r", self.name, error)
            raise NoResultError("transient") from error
        return session

    @property
    def _loop(self) -> BackgroundLoop:
        if self._background is None:
            self._background = BackgroundLoop(f"MCP server {self.name}")
        return self._background

    def _client(self) -> Client:
        from mcp import Client, StdioServerParameters

        if isinstance(self._server, str):
            return Client(self._server, read_timeout_seconds=self._timeout_s)
        bound = ["-c", _EXEC_BOUND_TO_PARENT, str(os.getpid()), *self._server]
        parameters = StdioServerParameters(command=sys.executable, args=bound, env=self._env)
        return Client(parameters, read_timeout_seconds=self._timeout_s)

    async def _list(self) -> tuple[ToolSpec, ...]:
        async with asyncio.timeout(self._timeout_s), self._client() as client:
            found: list[Tool] = []
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return tuple(map(self._spec, found))

    def _spec(self, found: Tool) -> ToolSpec:
        hinted = bool(found.annotations and found.annotations.read_only_hint)
        parameters = {"type": "object", "properties": {}, **found.input_schema, "additionalProperties": False}
        return ToolSpec(
            name=found.name,
            description=found.description or found.name,
            parameters=parameters,
            read_only=hinted if self._read_only is None else found.name in self._read_only,
        )


class McpSession:
    """A connection, kept open by one task of the background loop, as its transports ask for."""

    def __init__(self, loop: BackgroundLoop, client: Client, *, timeout_s: float, shared: bool) -> None:
        self._loop = loop
        self._client = client
        self._timeout_s = timeout_s
        self._is_shared = shared
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Event | None = None
        self.alive = False

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._loop.run(self._call(name, dict(arguments)))

    async def close(self) -> None:
        if not self._is_shared:
            await self._loop.run(self._close())

    async def start(self) -> None:
        """Connect; in the background loop."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._hold(ready, self._ended))
        await ready

    async def _hold(self, ready: asyncio.Future[None], ended: asyncio.Event) -> None:
        try:
            async with self._client:
                self.alive = True
                ready.set_result(None)
                await ended.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            else:
                logger.warning("an MCP connection ended: %r", error)
        finally:
            self.alive = False

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp.shared.exceptions import MCPError

        try:
            async with asyncio.timeout(self._timeout_s):
                return _result(await self._client.call_tool(name, arguments))
        except TimeoutError:
            raise NoResultError("timeout") from None
        except Exception as error:
            logger.warning("MCP tool %s got no answer: %r", name, error)
            if isinstance(error, MCPError) and error.code in _ANSWERED:
                return ToolResult(error=legible(error.message), lasting=False)
            assert self._ended is not None
            self._ended.set()
            self.alive = False
            raise NoResultError("transient") from error

    async def _close(self) -> None:
        if self._task is None or self._ended is None:
            return
        self._ended.set()
        with suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(self._task, _CLOSE_S)


def _result(answer: CallToolResult) -> ToolResult:
    """The protocol does not say whether a tool's error would come again, so none is lasting."""
    text = legible("\n".join(part.text for part in answer.content if part.type == "text"))
    if answer.is_error:
        return ToolResult(error=text or "failed", lasting=False)
    if isinstance(answer.structured_content, dict):
        with suppress(NotPlainError):
            return ToolResult(content=as_content(answer.structured_content))
    content = read_content(text, key="text")
    return ToolResult(content={"text": text} if content is None else content)


def _alive(connecting: asyncio.Task[McpSession]) -> bool:
    return not connecting.cancelled() and connecting.exception() is None and connecting.result().alive
