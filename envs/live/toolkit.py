"""`Toolkit` and `ToolSession`: where live tools come from, and one episode's access to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from cacherl.errors import ConfigError
from envs.base import Task, ToolSpec
from envs.simulator import ToolResult

T = TypeVar("T")


class ToolSession(Protocol):
    """One episode's access to the tools, and whatever state they keep for it."""

    @property
    def alive(self) -> bool:
        """False: it has broken off, and gives no result any more."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool. The arguments are valid by its schema.

        Raises:
            NoResultError: it could not be reached, or did not answer in time.
        """

    async def close(self) -> None:
        """Release it; repeated calls are harmless."""


class Toolkit(Protocol):
    """Tools that belong together."""

    @property
    def name(self) -> str:
        """Unique among toolkits that share a tool-result cache."""

    @property
    def varying(self) -> Collection[str]:
        """Fields of answers, at any depth, whose values are others each time, as times are, and tell nothing of the state."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools; may have to ask a server.

        Raises:
            EnvironmentFault: the server does not tell.
        """

    def scope(self, task: Task) -> str:
        """Names the world that a session of `task` begins in: equal names, equal worlds."""

    async def open(self, task: Task) -> ToolSession:
        """A session in a world where no tool has changed anything yet.

        Raises:
            NoResultError: the server cannot be reached.
        """


def named_once(kind: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Name -> thing.

    Raises:
        ConfigError: a name comes twice among those of `kind`.
    """
    found: dict[str, T] = {}
    for name, thing in named:
        if name in found:
            raise ConfigError(f"{kind}: the name {name!r} comes twice; give each one of its own")
        found[name] = thing
    return found
