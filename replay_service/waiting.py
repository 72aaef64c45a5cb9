"""Polling with back-off and jitter up to a deadline: a script cannot block the server."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from cacherl.errors import DeadlineExceeded
from replay_service.connection import Connection

_FIRST_S = 0.005
_LONGEST_S = 0.25


def polls(connection: Connection, deadline_s: float) -> Iterator[Poll]:
    """Yield attempts; the caller leaves the loop on success and otherwise says with `missing` what it waits for.

    Raises:
        DeadlineExceeded: nothing came within `deadline_s`; names what was missing last.
        ReplayError: the connection was closed meanwhile.
    """
    end = time.monotonic() + deadline_s
    delay = _FIRST_S
    poll = Poll()
    while True:
        yield poll
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise DeadlineExceeded(poll.missing, deadline_s)
        connection.pause(min(remaining, delay * random.uniform(0.5, 1.5)))
        delay = min(delay * 1.5, _LONGEST_S)


class Poll:
    """One wait; `missing` is what it is for, as a noun phrase."""

    def __init__(self) -> None:
        self.missing = "the replay service"
