"""Caps on what a turn may contain, and the problems of a call's markup that all action formats share."""

from __future__ import annotations

from collections.abc import Sequence

from envs.base import ParsedCall

MAX_CALLS = 8
MAX_CALL_CHARS = 8192

NO_NAME = "the tool name is missing"
UNCLOSED = "the call is not closed"
UNOPENED = "the call is not opened"
CALL_TOO_LONG = "the call is too long"
ENVELOPE = "a call is one object with name and arguments"
TOO_MANY = f"more than {MAX_CALLS} calls in a turn"
PROBLEMS = (NO_NAME, UNCLOSED, UNOPENED, CALL_TOO_LONG, ENVELOPE, TOO_MANY)


def capped(calls: Sequence[ParsedCall]) -> tuple[ParsedCall, ...]:
    """The first `MAX_CALLS` calls; one problem stands for all that are left out."""
    if len(calls) <= MAX_CALLS:
        return tuple(calls)
    return (*calls[:MAX_CALLS], ParsedCall(name="", problem=TOO_MANY))
