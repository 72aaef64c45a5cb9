"""When two calls count as nearly the same: the normal form of arguments, and the similarity of texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_NUMERAL = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?")


def normal(value: Any) -> Any:
    """Arguments without case, surplus white space and the form of numbers: ' New  York' -> 'new york', '2.50' -> 2.5, 3.0 -> 3.

    Numerals with leading zeros stay text: they are more often names than numbers.
    """
    if isinstance(value, str):
        text = " ".join(value.split()).casefold()
        return normal(float(text)) if _NUMERAL.fullmatch(text) else text
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: normal(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return value


def similarity(left: Any, right: Any) -> float:
    """In [0, 1]; 1 for values of one normal form, else for texts the Dice coefficient of their character trigrams, else 0.

    Dice: Information Retrieval, van Rijsbergen 1979, chapter 3: 2 |A ∩ B| / (|A| + |B|).
    """
    return similarity_of_normal(normal(left), normal(right))


def similarity_of_normal(left: Any, right: Any) -> float:
    """`similarity` of values that are normal forms."""
    if left == right and isinstance(left, bool) == isinstance(right, bool):
        return 1.0
    if not (isinstance(left, str) and isinstance(right, str)):
        return 0.0
    a, b = _trigrams(left), _trigrams(right)
    return 2 * len(a & b) / (len(a) + len(b))


@lru_cache(maxsize=4096)
def _trigrams(text: str) -> frozenset[str]:
    padded = f"  {text} "
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2))
