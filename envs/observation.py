"""How tool results are written: compact JSON, an error as `{"error": text}`; and what is written where there is no result."""

from __future__ import annotations

import json
from typing import Literal

from cacherl.trajectory import Message
from envs.jsontext import compact

#: Error text of a transient failure; the call may be repeated.
TRANSIENT = "timeout"
#: Error text of a call that nothing recorded matches, where only recorded results are served.
UNRECORDED = "not recorded"

Failure = Literal["transient", "timeout", "unrecorded"]
_ERROR = '{"error":'


class NoResultError(Exception):
    """A call that got no result, for no fault of whoever made it.

    Args:
        kind: 'transient' and 'timeout': the same call may be made again; 'unrecorded': nothing recorded matches it, and no tool
            may be called.
    """

    def __init__(self, kind: Failure) -> None:
        super().__init__(kind)
        self.kind = kind

    @property
    def text(self) -> str:
        """What the agent is told."""
        return UNRECORDED if self.kind == "unrecorded" else TRANSIENT


def render_error(text: str) -> str:
    """The tool result of a failed call."""
    return compact({"error": text})


def error_text(message: Message) -> str | None:
    """The error that a tool result states; None: the call succeeded."""
    return str(json.loads(message.content)["error"]) if message.content.startswith(_ERROR) else None
