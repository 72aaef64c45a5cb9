"""`search` and `read` on a research world, and the verdict: the right answer, with every needed document field read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.base import PlannedCall, ToolSpec
from envs.calllog import CallLog
from envs.research.names import RELATIONS
from envs.research.world import World
from envs.simulator import FIRST, NEEDED, USES, ToolResult

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
    """Serves one world. The only state is the set of calls that were made."""

    def __init__(self, world: World) -> None:
        self._world = world
        reads = [
            PlannedCall(name="read", arguments={"id": world.ids[person], "field": relation})
            for person, relation in zip(world.chain, world.relations, strict=False)
        ]
        searches = [PlannedCall(name="search", arguments={"name": person}) for person in world.chain[:-1]]
        self._log = CallLog(needed=[*searches, *reads], evidence=reads)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        content = self._search(**arguments) if name == "search" else self._read(**arguments)
        tags = self._log.record(name, arguments)
        if name == "read" and tags == (NEEDED, FIRST) and self._was_found(arguments["id"]):
            tags = (*tags, USES)
        return ToolResult(error=NOT_FOUND, tags=tags) if content is None else ToolResult(content=content, tags=tags)

    def _was_found(self, document: str) -> bool:
        person = next(person for person, id in self._world.ids.items() if id == document)
        return self._log.made("search", {"name": person})

    def _search(self, name: str) -> dict[str, str] | None:
        found = self._world.ids.get(name)
        return None if found is None else {"id": found}

    def _read(self, id: str, field: str) -> dict[str, str] | None:
        facts = self._world.facts.get(id)
        return None if facts is None else {"value": facts[field]}

    def answer(self, value: str | None) -> float:
        return float(value == self._world.chain[-1] and self._log.complete)

    def verdict(self) -> float:
        return 0.0

    def potential(self) -> float:
        return self._log.progress

    def state(self) -> dict[str, Any]:
        return {"done": self._log.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._log.restore(state["done"])
