"""The JSON form of Llama-3 models: the turn is `{"name": ..., "parameters": {...}}`, or several of them joined by ';'.

There are no closing tags, so a turn holds calls exactly if it begins with '{' (after an optional `<|python_tag|>` or code
fence), or has that tag anywhere. Anything else is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from envs.base import ParsedCall, PlannedCall
from envs.envelope import read_envelope, render_envelope
from envs.jsontext import UnreadableError, decode_object
from envs.limits import CALL_TOO_LONG, MAX_CALL_CHARS, MAX_CALLS, UNCLOSED, capped

TAG = "<|python_tag|>"
_KEY = "parameters"
_BEGINS = re.compile(r"(?:```(?:json)?\s*)?\{")
_BETWEEN = re.compile(r"\s*;?\s*(?=\{)")


class Llama3Format:
    """Reads and writes the Llama-3 JSON form."""

    tags = (TAG,)

    def render(self, calls: Sequence[PlannedCall]) -> str:
        return "; ".join(render_envelope(call, key=_KEY) for call in calls)

    def parse(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        _, tag, after = text.partition(TAG)
        body = (after if tag else text).strip()
        if not tag and not _BEGINS.match(body):
            return ()
        return capped(_calls(body, finished=finish_reason == "stop"))


def _calls(body: str, *, finished: bool) -> list[ParsedCall]:
    found: list[ParsedCall] = []
    position = 0
    while len(found) <= MAX_CALLS:
        try:
            end = decode_object(body[: position + MAX_CALL_CHARS], position)[1]
        except UnreadableError:
            return [*found, _last(body[position:], finished=finished)]
        between = _BETWEEN.match(body, end)
        if between is None:
            return [*found, _last(body[position:], finished=finished)]
        found.append(read_envelope(body[position:end], key=_KEY))
        position = between.end()
    return found


def _last(body: str, *, finished: bool) -> ParsedCall:
    if len(body) > MAX_CALL_CHARS:
        return ParsedCall(name="", problem=CALL_TOO_LONG)
    call = read_envelope(body, key=_KEY)
    if not finished and "missing_brace" in call.repairs:
        return replace(call, arguments={}, problem=UNCLOSED, repairs=())
    return call
