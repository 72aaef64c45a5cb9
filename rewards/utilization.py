"""ResultUtilization: a later turn uses what a tool returned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from cacherl.trajectory import Turn
from rewards.base import Reach, State, Step

#: Words of a text up to which it counts as one value; of a longer one, its names and numbers do.
_SHORT = 6
_NAMES_AND_NUMBERS = re.compile(r"\b(?:[^\W\d_a-z][\w-]{2,}|\w*\d\w*)\b")
_SHORTEST_VALUE = 2


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
        return self.value * sum(_uses(step.action, values) for values in _open_results(step.state))

    def reach(self, turns: int) -> Reach:
        return Reach(gain=self.value * max(0, turns - 1))


def _open_results(state: State) -> Iterator[frozenset[str]]:
    """The new values of every result that no turn has used yet."""
    known = [message.content for message in state.prompt]
    for index, turn in enumerate(state.turns):
        known.append(turn.text)
        for values in _new_values(turn, known):
            later = (other.text for other in state.turns[index + 1 :])
            if not any(_uses(text, values) for text in later):
                yield values
        known += (message.content for message in turn.messages)


def _uses(text: str, values: frozenset[str]) -> bool:
    return any(occurs(value, text) for value in values)


def _new_values(turn: Turn, known: list[str]) -> Iterator[frozenset[str]]:
    for call, message in zip(turn.calls, turn.messages, strict=False):
        if call.ok:
            values = values_of(message.content)
            yield frozenset(value for value in values if not any(occurs(value, text) for text in known))


def values_of(content: str) -> frozenset[str]:
    """Short texts and numbers among the leaves of a JSON result (or of a plain text), names and numbers of long ones."""
    try:
        leaves = _leaves(json.loads(content))
    except (ValueError, RecursionError):
        leaves = iter([content])
    return frozenset(chain.from_iterable(map(_values_of_leaf, leaves)))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _values_of_leaf(text: str) -> list[str]:
    values = [text.strip()] if len(text.split()) <= _SHORT else _NAMES_AND_NUMBERS.findall(text)
    return [value for value in values if len(value) >= _SHORTEST_VALUE]


def occurs(value: str, text: str) -> bool:
    """`value` is in `text`, not as a part of a longer word."""
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None
