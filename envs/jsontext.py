"""Strict reading of one JSON object out of model text, with a white list of recorded repairs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

#: Repairs that may be made, by the name under which they are recorded.
REPAIRS = ("code_fence", "double_brace", "missing_brace", "string_arguments", "parameters", "unclosed_tag")

MAX_DEPTH = 16
_MAX_INT = 2**63
_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*(?:```)?", re.DOTALL)

NOT_JSON = "the call is not valid JSON"
NOT_OBJECT = "arguments must be one JSON object"
DUPLICATE = "a key is repeated"
NOT_FINITE = "numbers must be finite"
TOO_LARGE = "integers must fit into 64 bits"
TOO_DEEP = "the JSON is nested too deep"
NOT_TEXT = "strings must be valid Unicode"
TRAILING = "text follows the JSON"
PROBLEMS = (NOT_JSON, NOT_OBJECT, DUPLICATE, NOT_FINITE, TOO_LARGE, TOO_DEEP, NOT_TEXT, TRAILING)


class UnreadableError(ValueError):
    """The text is not one acceptable JSON object; the message is one of `PROBLEMS`."""


def compact(value: Any) -> str:
    """The one way in which JSON is written here: no spaces, keys in their order, Unicode as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values: keys sorted."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)


def decode_object(text: str, start: int = 0) -> tuple[dict[str, Any], int]:
    """The object that begins exactly at `start`, and the index after its end.

    Raises:
        UnreadableError: it is not an object, not JSON, or not finite, unique, shallow, 64-bit, encodable data.
    """
    if text[start : start + 1] != "{":
        raise UnreadableError(NOT_OBJECT)
    value: dict[str, Any]
    value, end = _decode(text, start)
    return value, end


def decode_array(text: str) -> list[dict[str, Any]]:
    """The objects of the one JSON array that `text` consists of.

    Raises:
        UnreadableError: as `decode_object`; an element is not an object.
    """
    value, end = _decode(text, 0)
    if text[end:].strip():
        raise UnreadableError(TRAILING)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreadableError(NOT_OBJECT)
    return value


def read_object(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The one object that `text` consists of, and the repairs that reading it took.

    Raises:
        UnreadableError: not even the white-listed repairs make it acceptable.
    """
    text = text.strip()
    repairs: tuple[str, ...] = ()
    if fenced := _FENCE.fullmatch(text):
        text, repairs = fenced[1], ("code_fence",)
    try:
        return _whole(text), repairs
    except UnreadableError as problem:
        for name, candidate in _candidates(text):
            try:
                return _whole(candidate), (*repairs, name)
            except UnreadableError:
                continue
        raise problem from None


def read_arguments(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments from JSON text: an object, or a JSON string that holds one.

    Raises:
        UnreadableError: see `read_object`.
    """
    stripped = text.strip()
    if not stripped.startswith('"'):
        return read_object(stripped)
    try:
        inner = json.loads(stripped)
    except ValueError:
        raise UnreadableError(NOT_JSON) from None
    return unwrap_arguments(inner)


def unwrap_arguments(value: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments that are already decoded: an object, or a string that holds its JSON.

    Raises:
        UnreadableError: NOT_OBJECT for anything else; see `read_object` for the string's content.
    """
    if isinstance(value, dict):
        return value, ()
    if not isinstance(value, str):
        raise UnreadableError(NOT_OBJECT)
    arguments, repairs = read_object(value)
    return arguments, ("string_arguments", *repairs)


def _decode(text: str, start: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except UnreadableError:
        raise
    except RecursionError:
        raise UnreadableError(TOO_DEEP) from None
    except ValueError:
        raise UnreadableError(NOT_JSON) from None
    _check(value, MAX_DEPTH)
    return value, end


def _whole(text: str) -> dict[str, Any]:
    value, end = decode_object(text)
    if text[end:].strip():
        raise UnreadableError(TRAILING)
    return value


def _candidates(text: str) -> list[tuple[str, str]]:
    found = [("missing_brace", text + "}")]
    if text.startswith("{{") and text.endswith("}}"):
        found.insert(0, ("double_brace", text[1:-1]))
    return found


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise UnreadableError(TOO_DEEP)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnreadableError(NOT_TEXT) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check(key, depth)
            _check(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth - 1)


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise UnreadableError(DUPLICATE)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UnreadableError(NOT_FINITE)
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or not -_MAX_INT <= (value := int(text)) < _MAX_INT:
        raise UnreadableError(TOO_LARGE)
    return value


def _refuse_constant(_: str) -> NoReturn:
    raise UnreadableError(NOT_FINITE)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_int=_integer, parse_constant=_refuse_constant)
