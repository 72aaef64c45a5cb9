"""How tool results are written: compact JSON, an error as `{"error": text}`."""

from __future__ import annotations

import json

from cacherl.trajectory import Message
from envs.jsontext import compact

#: Error text of a transient failure; the call may be repeated.
TRANSIENT = "timeout"
#: Error text of a call that nothing recorded matches, where only recorded results are served.
UNRECORDED = "not recorded"

_ERROR = '{"error":'


def render_error(text: str) -> str:
    """The tool result of a failed call."""
    return compact({"error": text})


def error_text(message: Message) -> str | None:
    """The error that a tool result states; None: the call succeeded."""
    return str(json.loads(message.content)["error"]) if message.content.startswith(_ERROR) else None
