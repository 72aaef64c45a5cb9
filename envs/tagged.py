"""Calls between an opening and a closing tag: what the project's own and the Hermes form have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from envs.base import ParsedCall
from envs.jsontext import UnreadableError, decode_object
from envs.limits import CALL_TOO_LONG, MAX_CALL_CHARS, MAX_CALLS, UNCLOSED, UNOPENED, capped


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedReader:
    """Finds tagged calls in text.

    Attributes:
        json_start: (text, index after the opening tag) -> index where the call's JSON should begin.
        read: body of a call -> the call.
    """

    opening: str
    closing: str
    json_start: Callable[[str, int], int]
    read: Callable[[str], ParsedCall]

    def calls(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        """Every call in `text`. A call without closing tag is readable only if the model had finished its turn."""
        found: list[ParsedCall] = []
        position = 0
        while (start := text.find(self.opening, position)) >= 0 and len(found) <= MAX_CALLS:
            if self.closing in text[position:start]:
                found.append(ParsedCall(name="", problem=UNOPENED))
            start += len(self.opening)
            end, position, closed = self._extent(text, start)
            found.append(self._one(text[start:end], closed=closed, may_be_unclosed=finish_reason == "stop"))
        if self.closing in text[position:]:
            found.append(ParsedCall(name="", problem=UNOPENED))
        return capped(found)

    def _extent(self, text: str, start: int) -> tuple[int, int, bool]:
        """End of a call's body, where to go on, and whether a closing tag ended it; tags within its JSON do not count."""
        try:
            search_from = decode_object(text[: start + MAX_CALL_CHARS], self.json_start(text, start))[1]
        except UnreadableError:
            search_from = start
        close = text.find(self.closing, search_from)
        reopen = text.find(self.opening, search_from)
        if close >= 0 and (reopen < 0 or close < reopen):
            return close, close + len(self.closing), True
        end = reopen if reopen >= 0 else len(text)
        return end, end, False

    def _one(self, body: str, *, closed: bool, may_be_unclosed: bool) -> ParsedCall:
        if len(body) > MAX_CALL_CHARS:
            return ParsedCall(name="", problem=CALL_TOO_LONG)
        call = self.read(body)
        if closed or call.problem is not None:
            return call
        if not may_be_unclosed:
            return ParsedCall(name=call.name, problem=UNCLOSED)
        return replace(call, repairs=(*call.repairs, "unclosed_tag"))
