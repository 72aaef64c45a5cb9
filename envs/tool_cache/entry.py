"""`CallKey` and `Recorded`: a tool call in a state, and what it led to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.jsontext import canonical, compact
from envs.simulator import ToolResult
from envs.tool_cache.normal import normal


def digest(*parts: str) -> str:
    """128 bits in hexadecimal that depend on `parts` and on where each ends."""
    return hashlib.blake2b("\0".join(f"{len(part)} {part}" for part in parts).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """A call and the situation that its result depends on.

    Attributes:
        state: hash of the state that the call acts on, of the world that the state is of included.
        arguments: plain JSON values.
    """

    state: str
    tool: str
    arguments: Mapping[str, Any]

    @property
    def exact(self) -> str:
        """Equal for the same call in the same state."""
        return digest(self.state, self.tool, canonical(self.arguments))

    @property
    def normalised(self) -> str:
        """Equal for calls of one normal form in the same state."""
        return digest(self.state, self.tool, canonical(normal(self.arguments)))

    @property
    def bucket(self) -> str:
        """Equal for all calls of one tool in the same state."""
        return digest(self.state, self.tool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a call led to.

    Attributes:
        after: the state that followed it, as plain JSON values, where the world can be put into it; else None.
    """

    key: CallKey
    result: ToolResult
    after: Any = field(default=None)

    def dump(self) -> str:
        """As one line of JSON."""
        key, result = self.key, self.result
        return compact(
            {
                "state": key.state,
                "tool": key.tool,
                "arguments": dict(key.arguments),
                "content": dict(result.content),
                "error": result.error,
                "kind": result.kind,
                "tags": list(result.tags),
                "after": self.after,
            }
        )

    @classmethod
    def load(cls, text: str | bytes) -> Recorded:
        """Read a `dump`; every call gives values of its own.

        Raises:
            ValueError: it is none.
        """
        try:
            value = json.loads(text)
            _require(value, {"state": str, "tool": str, "arguments": dict, "content": dict, "kind": str, "tags": list})
            _require(value, {"error": str | None})
            key = CallKey(state=value["state"], tool=value["tool"], arguments=value["arguments"])
            result = ToolResult(
                content=value["content"], error=value["error"], kind=value["kind"], tags=tuple(map(str, value["tags"]))
            )
            return cls(key=key, result=result, after=value["after"])
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"not a recorded tool result: {error!r}") from error


def _require(value: Any, kinds: Mapping[str, Any]) -> None:
    for name, kind in kinds.items():
        if not isinstance(value[name], kind):
            raise TypeError(f"{name} is a {type(value[name]).__name__}")
