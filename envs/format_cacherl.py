"""The project's own action text: `[TOOL_CALL] name {json} [/TOOL_CALL]`, any number of times in a turn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import ParsedCall, PlannedCall
from envs.jsontext import UnreadableError, compact, read_arguments
from envs.limits import NO_NAME
from envs.tagged import TaggedReader

OPEN, CLOSE = "[TOOL_CALL]", "[/TOOL_CALL]"
_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*")


class CacheRLFormat:
    """Reads and writes the project's own form. What stands outside of the tags is free text."""

    tags = (OPEN, CLOSE)

    def render(self, calls: Sequence[PlannedCall]) -> str:
        return "\n".join(f"{OPEN} {call.name} {compact(call.arguments)} {CLOSE}" for call in calls)

    def parse(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        return _READER.calls(text, finish_reason=finish_reason)


def _json_start(text: str, start: int) -> int:
    name = _NAME.match(text, start)
    return name.end() if name else start


def _read(body: str) -> ParsedCall:
    match = _NAME.match(body)
    if match is None:
        return ParsedCall(name="", problem=NO_NAME)
    try:
        arguments, repairs = read_arguments(body[match.end() :])
    except UnreadableError as problem:
        return ParsedCall(name=match[1], problem=str(problem))
    return ParsedCall(name=match[1], arguments=arguments, repairs=repairs)


_READER = TaggedReader(opening=OPEN, closing=CLOSE, json_start=_json_start, read=_read)
