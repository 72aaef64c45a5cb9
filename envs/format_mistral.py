"""The form of Mistral models: `[TOOL_CALLS]` and a JSON array of `{"name": ..., "arguments": {...}}`.

Newer models write `[TOOL_CALLS]name{json}` once a call instead; both are read, the array is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.base import ParsedCall, PlannedCall
from envs.envelope import render_envelope, unpack
from envs.jsontext import UnreadableError, decode_array, read_arguments
from envs.limits import CALL_TOO_LONG, MAX_CALL_CHARS, MAX_CALLS, NO_NAME, UNCLOSED, capped

TAG = "[TOOL_CALLS]"
_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(?:\[ARGS\])?\s*")


class MistralFormat:
    """Reads and writes the Mistral form. What stands before the tag is free text."""

    tags = (TAG,)

    def render(self, calls: Sequence[PlannedCall]) -> str:
        return f"{TAG}[{','.join(render_envelope(call) for call in calls)}]"

    def parse(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        if TAG not in text:
            return ()
        body = text.split(TAG, 1)[1].strip()
        if body.startswith("["):
            return capped(_array(body, finished=finish_reason == "stop"))
        return capped(
            [_named(part, finished=finish_reason == "stop") for part in body.split(TAG, MAX_CALLS + 1)[: MAX_CALLS + 1]]
        )


def _array(body: str, *, finished: bool) -> list[ParsedCall]:
    if len(body) > MAX_CALL_CHARS:
        return [ParsedCall(name="", problem=CALL_TOO_LONG)]
    try:
        items = decode_array(body)
    except UnreadableError as problem:
        return [ParsedCall(name="", problem=str(problem) if finished else UNCLOSED)]
    return [unpack(item) for item in items] or [ParsedCall(name="", problem=NO_NAME)]


def _named(part: str, *, finished: bool) -> ParsedCall:
    match = _NAME.match(part)
    if len(part) > MAX_CALL_CHARS:
        return ParsedCall(name="", problem=CALL_TOO_LONG)
    if match is None:
        return ParsedCall(name="", problem=NO_NAME)
    try:
        arguments, repairs = read_arguments(part[match.end() :])
    except UnreadableError as problem:
        return ParsedCall(name=match[1], problem=str(problem) if finished else UNCLOSED)
    if not finished and "missing_brace" in repairs:
        return ParsedCall(name=match[1], problem=UNCLOSED)
    return ParsedCall(name=match[1], arguments=arguments, repairs=repairs)
