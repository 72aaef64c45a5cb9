"""`in_own_thread`: a blocking function in a thread that nothing else waits for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class EscapedError(Exception):
    """The function raised what is no error of code but a sign to the interpreter: SystemExit, StopIteration and the like."""


async def in_own_thread(name: str, function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """What `function` returns, or raises.

    Not a thread of a pool: a call that never returns would keep a place of it, until no other call gets one; and an
    interpreter waits for its pools when it ends, but not for this daemon.

    Raises:
        EscapedError: it raised what would end an event loop instead of its caller, or cannot pass through a future.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: Exception | None) -> None:
        if result.done():  # nobody waits any more
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def work() -> None:
        value: Any = None
        error: Exception | None = None
        try:
            value = context.run(function, *positional, **named)
        except StopIteration as raised:
            error = EscapedError(repr(raised))
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = EscapedError(repr(raised))
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=f"tool {name}", daemon=True).start()
    return await result
