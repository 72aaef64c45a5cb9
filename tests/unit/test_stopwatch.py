"""Waiting is measured without the event loop's lag, and ends at the limit."""

from __future__ import annotations

import asyncio
import time

import pytest

from actors.stopwatch import Stopwatch
from cacherl.errors import DeadlineExceeded


async def busy(seconds: float, *, after: float) -> None:
    """Keep the event loop from everybody else."""
    await asyncio.sleep(after)
    time.sleep(seconds)  # noqa: ASYNC251 - the lag under test


async def test_seconds_add_up_to_the_limit() -> None:
    watch = Stopwatch(0.25)
    result, seconds = await watch.measure(asyncio.sleep(0.1, "a"), "a nap")
    assert (result, seconds) == ("a", pytest.approx(0.1, abs=0.05))
    assert not watch.expired
    with pytest.raises(DeadlineExceeded, match=r"^gave up after 0\.25 s waiting for a long nap$"):
        await watch.measure(asyncio.sleep(30), "a long nap")
    assert watch.expired


async def test_the_call_that_exceeds_the_limit_is_cancelled() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    begin = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await Stopwatch(0.1).measure(endless(), "the end")
    assert ended == ["cancelled"]
    assert time.monotonic() - begin == pytest.approx(0.1, abs=0.1)


async def test_lag_is_not_counted_and_does_not_end_a_call() -> None:
    watch = Stopwatch(0.4)
    hog = asyncio.create_task(busy(0.8, after=0.05))
    result, seconds = await watch.measure(asyncio.sleep(0.1, "a"), "a nap")
    await hog
    assert result == "a"
    assert seconds < 0.25
    assert not watch.expired


async def test_a_call_still_has_its_whole_time_after_a_lag() -> None:
    hog = asyncio.create_task(busy(0.5, after=0.0))
    result, seconds = await Stopwatch(0.3).measure(_naps(10, 0.01), "naps")
    await hog
    assert result == 10
    assert seconds < 0.3


async def _naps(count: int, each_s: float) -> int:
    for _ in range(count):
        await asyncio.sleep(each_s)
    return count


async def test_errors_of_the_call_pass_and_its_seconds_count() -> None:
    async def fail(error: Exception) -> None:
        await asyncio.sleep(0.1)
        raise error

    watch = Stopwatch(0.3)
    for error in (TimeoutError("the tool's own"), KeyError("the tool's own")):
        with pytest.raises(type(error), match="the tool's own"):
            await watch.measure(fail(error), "a tool")
    assert not watch.expired
    begin = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="waiting for a nap"):
        await watch.measure(asyncio.sleep(30), "a nap")
    assert time.monotonic() - begin < 0.25


async def test_cancelling_from_outside_stays_a_cancellation() -> None:
    task = asyncio.create_task(Stopwatch(5).measure(asyncio.sleep(30), "a nap"))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
