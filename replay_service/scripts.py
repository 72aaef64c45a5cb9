"""The Lua scripts beside this file: loading, calling, and reloading when the server forgot them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgpack

_BRINGS_PAYLOADS = ("push", "rescore")


@dataclass(frozen=True, slots=True)
class Script:
    """Source of one script, `common.lua` included, and its SHA-1 as EVALSHA wants it."""

    source: str
    sha: str


@cache
def load(name: str) -> Script:
    """The script in ``<name>.lua``.

    All but those that bring payloads may write when memory is full: what they add is small, and most of them free something.
    """
    folder = files("replay_service")
    flags = "" if name in _BRINGS_PAYLOADS else "#!lua flags=allow-oom\n"
    source = flags + "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name))
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def pack(arguments: Mapping[str, Any]) -> bytes:
    """A script's only argument, which it reads as the table A; Lua's cmsgpack knows no separate type for bytes."""
    return bytes(msgpack.packb(arguments, use_bin_type=False, unicode_errors="surrogatepass"))


def unpack(answer: bytes) -> Any:
    """What a script or a stored plan says; all its strings are bytes."""
    return msgpack.unpackb(answer, raw=True)


def raw(value: str) -> bytes:
    """A string as Lua and the server's keys have it; ids may hold anything, also lone surrogates."""
    return value.encode(errors="surrogatepass")


def text(value: bytes) -> str:
    """A string that went through Lua: the inverse of `raw`."""
    return value.decode(errors="surrogatepass")
