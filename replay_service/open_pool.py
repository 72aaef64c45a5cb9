"""A pool that is open: its settings applied, or an existing pool joined, before the first script runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from cacherl.errors import ReplayError
from cacherl.replay_settings import ReplaySettings
from replay_service import configuration, scripts
from replay_service.connection import Connection
from replay_service.keys import Keys

logger = logging.getLogger(__name__)


class OpenPool:
    """Runs scripts on one pool, opening it first, and again should the server have lost it.

    Args:
        join: take the pool as it is; it must exist.
    """

    def __init__(self, index: Connection, keys: Keys, settings: ReplaySettings, *, join: bool) -> None:
        self._index = index
        self._keys = keys
        self._settings = settings
        self._join = join
        self._ready = False
        self._room: tuple[int, float] = (0, 0)

    def __str__(self) -> str:
        return f"{self._index.where}, {self._keys.namespace!r}"

    def script(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The answer of a script."""
        packed = scripts.pack(arguments)
        return self.ask(lambda: [self._index.script(name, self._keys.state, packed)])[0]

    def ask(self, question: Callable[[], list[Any]]) -> list[Any]:
        """The answers of `question`, which runs scripts and may be repeated; errors may be among them."""
        self.open()
        answers = question()
        if not any(_is_unconfigured(answer) for answer in answers):
            return answers
        self.forget()
        self.open()
        return question()

    def open(self) -> None:
        """Apply the settings, or verify that there is a pool to join; once.

        Raises:
            ReplayError: there is none, or its payloads are spread over other servers than the settings say.
        """
        if self._ready:
            return
        shards = len(self._settings.shards)
        arguments: dict[str, Any] = {"shards": shards}
        if not self._join:
            arguments["cfg"] = configuration.encode(self._settings)
        answer = self._index.script("configure", self._keys.state, scripts.pack(arguments))
        match answer[b"status"]:
            case b"unconfigured":
                raise ReplayError(
                    f"there is no pool {self._keys.namespace!r} at {self._index.where}: nothing was ever pushed there"
                )
            case b"resharded":
                raise ReplayError(
                    f"pool {self._keys.namespace!r} was written over {answer[b'have']} shards, not {shards}: "
                    "give replay.shards as they were, or clear the pool"
                )
            case b"changed":
                logger.info("replay pool %s: settings applied", self)
        self._room = configuration.room_of(answer[b"cfg"])
        self._ready = True

    def room(self) -> tuple[int, float]:
        """Trajectories and payload bytes that the pool may hold, as it was when it was opened."""
        self.open()
        return self._room

    def change(self, settings: ReplaySettings) -> None:
        """Go on with other settings; the flow so far is accounted for at the old ones."""
        self.open()
        self._settings = settings
        self._index.script("configure", self._keys.state, scripts.pack({"cfg": configuration.encode(settings), "carry": True}))

    def forget(self) -> None:
        """Open again before the next script."""
        self._ready = False


def _is_unconfigured(answer: Any) -> bool:
    return isinstance(answer, Mapping) and answer[b"status"] == b"unconfigured"
