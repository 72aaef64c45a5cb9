"""A small stateful world whose every result states the state that it was given in, for tests of the tool-result cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envs.base import Solution, ToolSpec
from envs.simulator import Scenario, ToolResult


def _spec(name: str, *, read_only: bool) -> ToolSpec:
    properties = {"key": {"type": "string"}, "value": {"type": "number"}}
    parameters = {"type": "object", "properties": properties, "required": ["key"], "additionalProperties": False}
    return ToolSpec(name=name, description=name, parameters=parameters, read_only=read_only)


TOOLS = (_spec("look", read_only=True), _spec("put", read_only=False))


class Shelf:
    """`put` stores a value under a key, `look` tells it; both tell the whole shelf. Counts the calls that reach it."""

    calls = 0

    def __init__(self) -> None:
        self._held: dict[str, float] = {}

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        Shelf.calls += 1
        if name == "put":
            self._held[arguments["key"]] = arguments.get("value", 0)
        elif arguments["key"] not in self._held:
            return ToolResult(error="nothing there")
        return ToolResult(content={"key": arguments["key"], "shelf": dict(self._held)})

    def answer(self, value: str | None) -> float:
        return float(value == str(len(self._held)))

    def verdict(self) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        return {"held": dict(self._held)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._held = state["held"]  # not copied: whoever shares it is found out


class ShelfFamily:
    """One task: how many things are on the shelf?"""

    name = "shelf"
    tools = TOOLS

    def levels(self, split: str) -> tuple[int, ...]:
        return (1,) if split in ("train", "val") else ()

    def build(self, *, split: str, level: int, seed: int) -> Scenario:
        del split, level, seed
        return Scenario(prompt="Fill the shelf.", params={}, solution=Solution(steps=(), answer="0", guess="0"), start=Shelf)

    def texts(self) -> Iterable[str]:
        return ("Fill the shelf.",)
