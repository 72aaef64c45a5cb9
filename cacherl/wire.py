"""Checked reading of decoded wire values: each function returns its value or raises a `CodecError` that names the field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from cacherl.errors import CodecError


def fields(value: Any, count: int, name: str) -> list[Any]:
    if len(as_list(value, name)) != count:
        raise CodecError(f"{name} has {len(value)} fields, expected {count}")
    return cast(list[Any], value)


def as_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise CodecError(f"{name} must be a list, got {type(value).__name__}")
    return value


def as_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise CodecError(f"{name} must be text, got {type(value).__name__}")
    return value


def as_optional_text(value: Any, name: str) -> str | None:
    return None if value is None else as_text(value, name)


def as_texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(as_text(entry, name) for entry in as_list(value, name))


def as_integer(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CodecError(f"{name} must be an integer, got {value!r:.40}")
    return value


def as_natural(value: Any, name: str) -> int:
    if as_integer(value, name) < 0:
        raise CodecError(f"{name} must be >= 0, got {value}")
    return cast(int, value)


def as_number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CodecError(f"{name} must be a number, got {value!r:.40}")
    return float(value)


def as_mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CodecError(f"{name} must be a mapping, got {type(value).__name__}")
    return value


def as_rewards(value: Any) -> dict[str, float]:
    return {as_text(name, "reward name"): as_number(reward, "reward") for name, reward in as_mapping(value, "rewards").items()}


def as_choice(value: Any, choices: Iterable[str], name: str) -> Any:
    if value not in choices:
        raise CodecError(f"{name} must be one of {', '.join(choices)}, got {value!r:.40}")
    return value


def as_bytes(value: Any, name: str, size: int | None = None) -> bytes:
    if not isinstance(value, bytes):
        raise CodecError(f"{name} must be bytes, got {type(value).__name__}")
    if size is not None and len(value) != size:
        raise CodecError(f"{name} has {len(value)} bytes, expected {size}")
    return value
