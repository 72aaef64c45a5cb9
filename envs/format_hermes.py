"""The form of Hermes and Qwen models: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of times."""

from __future__ import annotations

from collections.abc import Sequence

from envs.base import ParsedCall, PlannedCall
from envs.envelope import read_envelope, render_envelope
from envs.tagged import TaggedReader

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesFormat:
    """Reads and writes the Hermes form. What stands outside of the tags is free text."""

    tags = (OPEN, CLOSE)

    def render(self, calls: Sequence[PlannedCall]) -> str:
        return "\n".join(f"{OPEN}\n{render_envelope(call)}\n{CLOSE}" for call in calls)

    def parse(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        return _READER.calls(text, finish_reason=finish_reason)


def _json_start(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


_READER = TaggedReader(opening=OPEN, closing=CLOSE, json_start=_json_start, read=read_envelope)
