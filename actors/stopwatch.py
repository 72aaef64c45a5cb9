"""Stopwatch: how long an episode has waited for its engine and its tools, and the end of its patience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from cacherl.errors import DeadlineExceeded

T = TypeVar("T")

#: Seconds between two looks at how late the event loop is.
_TICK_S = 0.05


class Stopwatch:
    """Adds up the seconds of awaited calls, without the time that the event loop lost, and ends a call at the limit.

    One event loop serves hundreds of episodes, so a call's answer may lie ready long before its episode is resumed. A timer
    tells by how much: whatever it fires late is lag, and counts for nobody.

    Args:
        limit_s: seconds of all calls together.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._spent_s = 0.0

    @property
    def expired(self) -> bool:
        """The limit is reached."""
        return self._spent_s >= self._limit_s

    async def measure(self, call: Awaitable[T], waited_for: str) -> tuple[T, float]:
        """Await `call`; returns its result and its seconds.

        Args:
            waited_for: noun phrase of what `call` brings about.

        Raises:
            DeadlineExceeded: the limit was reached first; `call` was cancelled.
        """
        patience = asyncio.timeout(None)
        try:
            async with patience:
                lap = _Lap(patience, self._limit_s - self._spent_s)
                try:
                    result = await call
                finally:
                    seconds = lap.stop()
                    self._spent_s += seconds
        except TimeoutError:
            if patience.expired():
                raise DeadlineExceeded(waited_for, self._limit_s) from None
            raise
        return result, seconds


class _Lap:
    """One awaited call, from now until `stop`; makes `patience` expire after `limit_s` seconds without lag."""

    def __init__(self, patience: asyncio.Timeout, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._limit_s = limit_s
        self._lag_s = 0.0
        self._begin = self._loop.time()
        self._arm()

    def stop(self) -> float:
        """Seconds of the call, without lag."""
        self._timer.cancel()
        return self._seconds()

    def _arm(self) -> None:
        self._due = self._loop.time() + _TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._lag_s += max(0.0, self._loop.time() - self._due)
        self._arm()
        if self._seconds() >= self._limit_s:
            self._patience.reschedule(self._loop.time())

    def _seconds(self) -> float:
        now = self._loop.time()
        return now - self._begin - self._lag_s - max(0.0, now - self._due)
