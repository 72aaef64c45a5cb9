"""ResultUtilization: a later turn uses what a tool returned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from rewards.base import Reach, State, Step

#: Words of a text up to which it counts as one value; of a longer one, its names and numbers do.
_SHORT = 6
_NAMES_AND_NUMBERS = re.compile(r"\b(?:[^\W\d_a-z][\w-]{2,}|\w*\d\w*)\b")
_SHORTEST_VALUE = 2
_WORD = re.compile(r"\w")
#: Neither more of a word at its ends nor, at a digit, more of a decimal number.
_WHOLE = r"(?<!\w)(?!(?<=\d\.)\d){}(?!\w)(?!(?<=\d)\.\d)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultUtilization:
    """`value` for each earlier tool result that a turn is the first to use.

    By 'text', a turn uses a result if one of the result's values occurs in it as a whole word, and occurred nowhere before
    that result: not in the prompt, a completion or another result. So neither repeating the question nor asking again for
    what is known earns anything. By 'environment', a turn uses as many results as it has calls tagged 'uses'.
    """

    value: float
    rule: Literal["text", "environment"] = "text"
    name: str = "result_utilization"

    def turn(self, step: Step) -> float:
        if self.rule == "environment":
            return self.value * sum("uses" in call.tags for call in step.calls)
        return self.value * sum(result.used_in(step.action) for result in _open_results(step.state))

    def reach(self, turns: int) -> Reach:
        return Reach(gain=self.value * max(0, turns - 1))


@dataclass(frozen=True, slots=True)
class _Result:
    """A tool result: its values, and everything that was said before it."""

    values: frozenset[str]
    before: tuple[str, ...]

    def used_in(self, text: str) -> bool:
        """The text says a value that was new with this result. Looked for in the short text first: results may be large."""
        return any(not self._known(value) for value in self.values if occurs(value, text))

    def _known(self, value: str) -> bool:
        return any(occurs(value, text) for text in self.before)


def _open_results(state: State) -> Iterator[_Result]:
    """Every result that no turn has used yet."""
    before = [message.content for message in state.prompt]
    for index, turn in enumerate(state.turns):
        before.append(turn.text)
        later = [other.text for other in state.turns[index + 1 :]]
        answers = [message.content for message in turn.messages]
        for place, (call, content) in enumerate(zip(turn.calls, answers, strict=False)):
            if call.ok:
                result = _Result(values_of(content), (*before, *answers[:place]))
                if not any(map(result.used_in, later)):
                    yield result
        before += answers


@lru_cache(maxsize=256)
def values_of(content: str) -> frozenset[str]:
    """Short texts and numbers among the leaves of a JSON result (or of a plain text), names and numbers of long ones."""
    try:
        leaves = _leaves(json.loads(content, parse_float=str, parse_int=str))  # as the model has read them: 120.50
    except (ValueError, RecursionError):
        leaves = iter([content])
    return frozenset(chain.from_iterable(map(_values_of_leaf, leaves)))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value


def _values_of_leaf(text: str) -> list[str]:
    values = [text.strip()] if len(text.split()) <= _SHORT else _NAMES_AND_NUMBERS.findall(text)
    return [value for value in values if len(value) >= _SHORTEST_VALUE and _WORD.search(value)]


def occurs(value: str, text: str) -> bool:
    """`value` is in `text`, not as a part of a longer word or number: 12 is neither in 123 nor in 12.5 or 3.12."""
    return value in text and re.search(_WHOLE.format(re.escape(value)), text) is not None
