"""What live tools give, as content that can be recorded, hashed, tokenised and shown: plain, finite, shallow, encodable."""

from __future__ import annotations

import json
from typing import Any

#: Levels of lists and objects within each other; deeper ones would break whoever walks through them.
DEEPEST = 64


class NotPlainError(ValueError):
    """A value that JSON cannot carry; the message says why."""


def as_content(value: Any, *, key: str = "value") -> dict[str, Any]:
    """`value` as `ToolResult.content`: an object as it is, None as {}, anything else under `key`. Half a surrogate pair, which
    no text can hold, becomes a question mark.

    Raises:
        NotPlainError: it holds other than JSON values, NaN or infinity, or lists and objects deeper than `DEEPEST`.
    """
    try:
        _check_depth(value, DEEPEST)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotPlainError(str(error)) from error
    plain = json.loads(legible(text))
    return plain if isinstance(plain, dict) else {} if plain is None else {key: plain}


def read_content(body: bytes | str, *, key: str = "value") -> dict[str, Any] | None:
    """The content that the JSON in `body` states; None: it is not JSON, or none that can be carried on."""
    try:
        return as_content(json.loads(body), key=key)
    except (ValueError, RecursionError):
        return None


def legible(text: str) -> str:
    """`text` as far as UTF-8 can carry it."""
    return text.encode(errors="replace").decode()


def _check_depth(value: Any, left: int) -> None:
    if not isinstance(value, dict | list | tuple):
        return
    if left == 0:
        raise NotPlainError(f"lists and objects within each other, more than {DEEPEST} levels deep")
    for item in value.values() if isinstance(value, dict) else value:
        _check_depth(item, left - 1)
