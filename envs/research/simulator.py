"""`search` and `read` on a research world, and the verdict: the right answer, with every needed document field read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.base import ToolSpec
from envs.jsontext import canonical
from envs.research.names import RELATIONS
from envs.research.world import World
from envs.simulator import FIRST, IRRELEVANT, NEEDED, REPEAT, ToolResult

TOOLS = (
    ToolSpec(
        name="search",
        description="Find the id of a person's document.",
        parameters={
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(
        name="read",
        description="Read one field of a document: the name of the person who is that to the document's person.",
        parameters={
            "type": "object",
            "properties": {"id": {"type": "string"}, "field": {"type": "string", "enum": list(RELATIONS)}},
            "required": ["id", "field"],
            "additionalProperties": False,
        },
    ),
)

NOT_FOUND = "not found"


class ResearchSimulator:
    """Serves one world. The only state is the set of calls that succeeded."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._done: set[str] = set()
        steps = list(zip(world.chain, world.relations, strict=False))
        self._reads = {_key("read", {"id": world.ids[person], "field": relation}) for person, relation in steps}
        self._needed = self._reads | {_key("search", {"name": person}) for person, _ in steps}

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        content = self._search(**arguments) if name == "search" else self._read(**arguments)
        if content is None:
            return ToolResult(error=NOT_FOUND, tags=(IRRELEVANT,))
        key = _key(name, arguments)
        tags = (NEEDED if key in self._needed else IRRELEVANT, REPEAT if key in self._done else FIRST)
        self._done.add(key)
        return ToolResult(content=content, tags=tags)

    def _search(self, name: str) -> dict[str, str] | None:
        found = self._world.ids.get(name)
        return None if found is None else {"id": found}

    def _read(self, id: str, field: str) -> dict[str, str] | None:
        facts = self._world.facts.get(id)
        return None if facts is None else {"value": facts[field]}

    def answer(self, value: str | None) -> float:
        return float(value == self._world.chain[-1] and self._reads <= self._done)

    def verdict(self) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        return {"done": sorted(self._done)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._done = set(state["done"])


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    return name + canonical(arguments)
