"""`search`, `read` and `submit_report` on a library, and the verdict: exactly the asked fields, after all evidence was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envs.base import PlannedCall, ToolSpec
from envs.calllog import CallLog
from envs.reports.library import Library
from envs.reports.names import FIELDS
from envs.simulator import ToolResult

DONE = "done"
NOT_FOUND = "not found"


def _schema(names: tuple[str, ...], **more: Any) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


TOOLS = (
    ToolSpec(
        name="search",
        description="List the documents whose title shares a name with the query: id and title.",
        parameters=_schema(("query",), required=["query"]),
    ),
    ToolSpec(
        name="read",
        description="Read a document by its id: everything that it says about the one in its title.",
        parameters=_schema(("id",), required=["id"]),
    ),
    ToolSpec(
        name="submit_report",
        description="Submit the report: full titles by field. A later report replaces it.",
        parameters=_schema(FIELDS, minProperties=1),
        read_only=False,
    ),
)


class ReportSimulator:
    """Serves one library, and keeps the last report. What is right about a report is not told."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._report: dict[str, str] = {}
        self._log = CallLog(needed=map(self._meant, needed_calls(library)), evidence=_reads(library))

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        content: Mapping[str, Any] | None
        match name:
            case "search":
                content = self._search(arguments["query"])
            case "read":
                content = self._library.facts.get(arguments["id"])
            case _:
                self._report = dict(arguments)
                content = {"fields": len(arguments)}
        call = self._meant(PlannedCall(name=name, arguments=arguments))
        tags = self._log.record(call.name, call.arguments)
        return ToolResult(content=content, tags=tags) if content else ToolResult(error=NOT_FOUND, tags=tags)

    def _search(self, query: str) -> dict[str, str]:
        words = query.split()
        return {self._library.ids[title]: title for title, name in self._library.names.items() if name in words}

    def _meant(self, call: PlannedCall) -> PlannedCall:
        """Searches for one name are one call, whatever else their queries hold."""
        if call.name != "search":
            return call
        known = sorted({*self._library.names.values()} & {*call.arguments["query"].split()})
        return PlannedCall(name="search", arguments={"query": " ".join(known) or call.arguments["query"]})

    def answer(self, value: str | None) -> float:
        return self.verdict() if value == DONE else 0.0

    def verdict(self) -> float:
        return float(self._report == self._library.report and self._log.complete)

    def state(self) -> dict[str, Any]:
        return {"report": dict(self._report), "done": self._log.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._report = dict(state["report"])
        self._log.restore(state["done"])


def needed_calls(library: Library) -> Iterator[PlannedCall]:
    """The calls that solve the task, in order."""
    for title, read in zip(library.chain, _reads(library), strict=False):
        yield PlannedCall(name="search", arguments={"query": title})
        yield read
    yield PlannedCall(name="submit_report", arguments=library.report)


def _reads(library: Library) -> list[PlannedCall]:
    return [PlannedCall(name="read", arguments={"id": library.ids[title]}) for title in library.chain[:-1]]
