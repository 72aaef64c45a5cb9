"""The final answer of an episode: a turn without a tool call, `[ANSWER] value`."""

from __future__ import annotations

ANSWER_TAG = "[ANSWER]"


def render_answer(value: str) -> str:
    """The text of a turn that answers `value`."""
    return f"{ANSWER_TAG} {value}"


def read_answer(text: str, *, finish_reason: str) -> str | None:
    """What `text` answers: all that follows its only mark, stripped; text before the mark is free.

    None when there is no mark or more than one, or when the turn was cut off, as its end is unknown then.
    """
    if finish_reason != "stop" or text.count(ANSWER_TAG) != 1:
        return None
    return text.split(ANSWER_TAG)[1].strip()
