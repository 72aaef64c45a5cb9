"""The project's own action text: `[TOOL_CALL] name {json} [/TOOL_CALL]`, any number of times in a turn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import ParsedCall, PlannedCall
from envs.jsontext import UnreadableError, compact, decode_object, read_arguments
from envs.limits import CALL_TOO_LONG, MAX_CALL_CHARS, NO_NAME, UNCLOSED, UNOPENED, capped

OPEN, CLOSE = "[TOOL_CALL]", "[/TOOL_CALL]"
_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*")


class CacheRLFormat:
    """Reads and writes the project's own form. What stands outside of the tags is free text."""

    tags = (OPEN, CLOSE)

    def render(self, calls: Sequence[PlannedCall]) -> str:
        return "\n".join(f"{OPEN} {call.name} {compact(call.arguments)} {CLOSE}" for call in calls)

    def parse(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        return capped(_calls(text, may_be_unclosed=finish_reason == "stop"))


def _calls(text: str, *, may_be_unclosed: bool) -> list[ParsedCall]:
    found: list[ParsedCall] = []
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        if CLOSE in text[position:start]:
            found.append(ParsedCall(name="", problem=UNOPENED))
        start += len(OPEN)
        end, position, closed = _extent(text, start)
        found.append(_one(text[start:end], closed=closed, may_be_unclosed=may_be_unclosed))
    if CLOSE in text[position:]:
        found.append(ParsedCall(name="", problem=UNOPENED))
    return found


def _extent(text: str, start: int) -> tuple[int, int, bool]:
    """End of the call's body, where to go on, and whether a closing tag ended it. A tag inside a JSON string does not count."""
    search_from = start
    if name := _NAME.match(text, start):
        try:
            search_from = decode_object(text[: start + MAX_CALL_CHARS], name.end())[1]
        except UnreadableError:
            search_from = start
    close = text.find(CLOSE, search_from)
    reopen = text.find(OPEN, search_from)
    if close >= 0 and (reopen < 0 or close < reopen):
        return close, close + len(CLOSE), True
    end = reopen if reopen >= 0 else len(text)
    return end, end, False


def _one(body: str, *, closed: bool, may_be_unclosed: bool) -> ParsedCall:
    match = _NAME.match(body)
    name = match[1] if match else ""
    if len(body) > MAX_CALL_CHARS:
        return ParsedCall(name=name, problem=CALL_TOO_LONG)
    if match is None:
        return ParsedCall(name="", problem=NO_NAME)
    if not closed and not may_be_unclosed:
        return ParsedCall(name=name, problem=UNCLOSED)
    rest = body[match.end() :]
    try:
        arguments, repairs = read_arguments(rest)
    except UnreadableError as problem:
        return ParsedCall(name=name, problem=str(problem))
    return ParsedCall(name=name, arguments=arguments, repairs=repairs if closed else (*repairs, "unclosed_tag"))
