"""How tool results are written: compact JSON, an error as `{"error": text}`."""

from __future__ import annotations

from cacherl.trajectory import Message
from envs.jsontext import compact

#: Error text of a transient failure; the call may be repeated.
TRANSIENT = "timeout"

_ERROR = '{"error":'


def render_error(text: str) -> str:
    """The tool result of a failed call."""
    return compact({"error": text})


def is_error(message: Message) -> bool:
    """Whether `message` is the result of a failed call."""
    return message.role == "tool" and message.content.startswith(_ERROR)
