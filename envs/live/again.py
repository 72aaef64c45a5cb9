"""Whether a call that is made again is answered as it was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from envs.simulator import ToolResult

_ABSENT = object()


def difference(before: ToolResult, again: ToolResult, *, varying: Collection[str]) -> str | None:
    """The place where two answers to a call differ, as 'held.b'; None: they say the same. Errors do, whatever their text.

    Args:
        varying: names of fields whose values do not count, wherever they are.
    """
    if before.error is not None and again.error is not None:
        return None
    if before.error != again.error:
        return "error"
    return _difference(before.content, again.content, varying, "")


def _difference(before: Any, again: Any, varying: Collection[str], place: str) -> str | None:
    if isinstance(before, list) and isinstance(again, list):
        before, again = dict(enumerate(before)), dict(enumerate(again))
    if not (isinstance(before, Mapping) and isinstance(again, Mapping)):
        return None if before == again else place
    names = [name for name in {**before, **again} if name not in varying]
    places = (
        _difference(before.get(name, _ABSENT), again.get(name, _ABSENT), varying, f"{place}.{name}".lstrip("."))
        for name in names
    )
    return next((found for found in places if found is not None), None)
