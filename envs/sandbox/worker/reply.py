"""`Reply`: what became of a call, as the guard tells the owner."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OK = "ok"
#: The code itself failed; text says how.
EXCEPTION = "exception"
TIMEOUT, MEMORY, CRASH, PROTOCOL = "timeout", "memory", "crash", "protocol"
KINDS = (OK, EXCEPTION, TIMEOUT, MEMORY, CRASH, PROTOCOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Attributes:
    kind: one of `KINDS`.
    text: output of a call that went well; message of an 'exception'.
    truncated: the output was longer.
    lost: the process that ran the code has ended, and its variables with it.
    """

    kind: str
    text: str = ""
    truncated: bool = False
    lost: bool = False

    def message(self) -> dict[str, Any]:
        """As a frame."""
        return asdict(self)
