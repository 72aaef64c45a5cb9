"""`LiveTools`: one toolkit in one episode, its results recorded or served from recordings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cacherl.errors import EnvironmentFault
from envs.base import Task
from envs.live.again import difference
from envs.live.toolkit import Toolkit, ToolSession
from envs.simulator import ToolResult
from envs.tool_cache.cache import ToolCache
from envs.tool_cache.entry import CallKey, Recorded
from envs.world import Served, state_hash


@dataclass(frozen=True, slots=True)
class _Change:
    """A call that may have changed the state, and the result it was answered with; None: not known any more."""

    tool: str
    arguments: Mapping[str, Any]
    result: ToolResult | None


class LiveTools:
    """Calls the tools, lazily, and only where nothing recorded is served.

    A live world cannot be looked into, so its state is known by the calls that may have changed it (those of tools that are not
    read-only): the whole list of them is the state in every key. What was served from recordings has not happened in the live
    world; before the first live call it is made up for, and must come out as it did, but for `Toolkit.varying`. So are all
    changes where a session has broken off and another is opened.

    After a failed call of a tool that is not read-only nobody knows the state: nothing more is served, and nothing recorded.
    """

    def __init__(self, toolkit: Toolkit, task: Task, *, read_only: frozenset[str], cache: ToolCache | None) -> None:
        self._toolkit = toolkit
        self._task = task
        self._read_only = read_only
        self._cache = cache
        self._session: ToolSession | None = None
        self._changes: list[_Change] = []
        self._happened = 0
        self._uncertain = False

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[Served, Mapping[str, Any]]:
        """The result, and the arguments of the call that it was really given for.

        Raises:
            NoResultError: see `World.call`.
            EnvironmentFault: the live world does not do again what it did.
        """
        begin = time.monotonic()
        if self._cache is None or self._uncertain:
            result = await self._live(name, arguments)
            return Served(result=result, tier="live" if self._cache else None, seconds=time.monotonic() - begin), arguments
        key = CallKey(state=self._state_hash(), tool=name, arguments=arguments)
        hit = await self._cache.serve(key, read_only=name in self._read_only, call=lambda: self._recorded(key))
        if hit.tier == "live":
            return Served(result=hit.recorded.result, tier="live", seconds=time.monotonic() - begin), arguments
        self._note(name, hit.recorded.key.arguments, hit.recorded.result)
        return Served(result=hit.recorded.result, tier=hit.tier), hit.recorded.key.arguments

    def state(self) -> dict[str, Any]:
        """What is known of the state, as plain JSON values."""
        return {"changes": [[change.tool, dict(change.arguments)] for change in self._changes], "uncertain": self._uncertain}

    async def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state`; the live world follows before the next live call."""
        self._changes = [_Change(tool, arguments, None) for tool, arguments in state["changes"]]
        self._uncertain = state["uncertain"]
        await self.close()

    async def close(self) -> None:
        """Close the session, if there is one."""
        session, self._session, self._happened = self._session, None, 0
        if session is not None:
            await session.close()

    def _state_hash(self) -> str:
        return state_hash(self._toolkit.scope(self._task), self.state())

    async def _recorded(self, key: CallKey) -> Recorded:
        return Recorded(key=key, result=await self._live(key.tool, key.arguments))

    async def _live(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        session = await self._open()
        await self._catch_up(session)
        try:
            result = await session.call(name, arguments)
        except BaseException:
            self._uncertain |= name not in self._read_only
            raise
        self._uncertain |= name not in self._read_only and not result.lasting
        self._note(name, arguments, result)
        self._happened = len(self._changes)
        return result

    async def _open(self) -> ToolSession:
        """The session; after one that has broken off another, in which nothing has happened yet."""
        if self._session is not None and not self._session.alive:
            await self.close()
        if self._session is None:
            self._session = await self._toolkit.open(self._task)
        return self._session

    def _note(self, name: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        if name not in self._read_only:
            self._changes.append(_Change(name, dict(arguments), result))

    async def _catch_up(self, session: ToolSession) -> None:
        for change in self._changes[self._happened :]:
            try:
                result = await session.call(change.tool, change.arguments)
            except BaseException:
                self._uncertain = True
                raise
            before, varying = change.result, self._toolkit.varying
            if before is not None and (place := difference(before, result, varying=varying)) is not None:
                raise EnvironmentFault(
                    f"tool {change.tool!r} of toolkit {self._toolkit.name!r}, called again in a new session, answered "
                    f"otherwise in {place!r}: its world does not begin in the same state every time (record it anew, or switch "
                    "env.tool_cache off), or the field is another one each time (name it in the toolkit's varying=[…])"
                )
            self._happened += 1
