"""A call as one JSON object, `{"name": ..., "arguments": {...}}`: the body of the Hermes, Llama-3 and Mistral forms."""

from __future__ import annotations

from typing import Any

from envs.base import ParsedCall, PlannedCall
from envs.jsontext import UnreadableError, compact, read_object, unwrap_arguments
from envs.limits import ENVELOPE

#: Keys that some models add; they say nothing that is needed.
_IGNORED = {"id", "type"}


def render_envelope(call: PlannedCall, *, key: str = "arguments") -> str:
    """The object as compact JSON, name first."""
    return compact({"name": call.name, key: dict(call.arguments)})


def read_envelope(text: str, *, key: str = "arguments") -> ParsedCall:
    """The call that `text` consists of. The arguments may stand under 'arguments' or 'parameters'; the latter is recorded
    as a repair where `key` says that it is not the form's own."""
    try:
        value, repairs = read_object(text)
    except UnreadableError as problem:
        return ParsedCall(name="", problem=str(problem))
    return unpack(value, key=key, repairs=repairs)


def unpack(value: dict[str, Any], *, key: str = "arguments", repairs: tuple[str, ...] = ()) -> ParsedCall:
    """The call that a decoded object states; `repairs` were made to its text before."""
    name = value.get("name")
    used = [known for known in ("arguments", "parameters") if known in value]
    if not isinstance(name, str) or not name or len(used) != 1 or value.keys() - {"name", *used} - _IGNORED:
        return ParsedCall(name=name if isinstance(name, str) else "", problem=ENVELOPE)
    if used[0] == "parameters" != key:
        repairs = (*repairs, "parameters")
    try:
        arguments, inner = unwrap_arguments(value[used[0]])
    except UnreadableError as problem:
        return ParsedCall(name=name, problem=str(problem))
    return ParsedCall(name=name, arguments=arguments, repairs=(*repairs, *inner))
