"""Which recorded result is served to which call, and in which state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cacherl.environment_settings import ToolCacheSection
from envs.observation import NoResultError
from envs.simulator import ToolResult
from envs.tool_cache.cache import ToolCache, open_cache
from envs.tool_cache.entry import CallKey, Recorded
from envs.tool_cache.memory import MemoryStore
from envs.tool_cache.normal import normal, similarity

ALL_TIERS = ("exact", "normalised", "best_effort")


def cache(**changes: Any) -> ToolCache:
    found = open_cache(ToolCacheSection(**{"mode": "record_replay", **changes}))
    assert found is not None
    return found


def key(state: str = "s", tool: str = "search", **arguments: Any) -> CallKey:
    return CallKey(state=state, tool=tool, arguments=arguments)


def record(into: ToolCache, call: CallKey, **content: Any) -> None:
    asyncio.run(into.record(Recorded(key=call, result=ToolResult(content=content))))


def served(by: ToolCache, call: CallKey, *, read_only: bool = True) -> tuple[str, dict[str, Any]] | None:
    hit = asyncio.run(by.find(call, read_only=read_only))
    return None if hit is None else (hit.tier, dict(hit.recorded.result.content))


def test_the_closest_tier_serves() -> None:
    tools = cache(tiers=ALL_TIERS)
    record(tools, key(query="Paris hotels", n=3), of="paris")
    record(tools, key(query="rome  Hotels", n=3), of="rome")
    assert served(tools, key(n=3, query="Paris hotels")) == ("exact", {"of": "paris"})
    assert served(tools, key(query=" paris HOTELS ", n=3.0)) == ("normalised", {"of": "paris"})
    assert served(tools, key(query="Rome hostels", n=3)) == ("best_effort", {"of": "rome"})
    assert served(tools, key(tool="read", query="Paris hotels", n=3)) is None


@pytest.mark.parametrize(("tiers", "expected"), [(("exact",), None), (("exact", "best_effort"), ("best_effort", {"of": 1}))])
def test_a_tier_that_is_not_switched_on_serves_nothing(tiers: tuple[str, ...], expected: Any) -> None:
    tools = cache(tiers=tiers)
    record(tools, key(query="Paris"), of=1)
    assert served(tools, key(query="paris")) == expected


def test_another_state_is_never_served() -> None:
    tools = cache(tiers=ALL_TIERS, similar={"search": {"query": 0.1}})
    record(tools, key(state="s", query="paris"), of=1)
    assert served(tools, key(state="t", query="paris")) is None


def test_a_call_that_changes_the_state_is_served_exactly_or_not_at_all() -> None:
    tools = cache(tiers=ALL_TIERS, similar={"book": {"id": 0.1}})
    record(tools, key(tool="book", id="f7"), booked="f7")
    assert served(tools, key(tool="book", id="F7"), read_only=False) is None
    assert served(tools, key(tool="book", id="f7"), read_only=False) == ("exact", {"booked": "f7"})


def test_declared_arguments_may_be_similar_and_the_others_must_be_the_same() -> None:
    tools = cache(tiers=("exact", "normalised"), similar={"search": {"query": 0.6}})
    record(tools, key(query="cheap hotels in paris", page=1), of=1)
    assert similarity("cheap hotels in paris", "cheap hotel in paris") == pytest.approx(2 * 19 / (22 + 21))
    assert served(tools, key(query="Cheap hotel in Paris", page=1)) == ("normalised", {"of": 1})
    assert served(tools, key(query="Cheap hotel in Paris", page=2)) is None
    assert served(tools, key(query="flights to rome", page=1)) is None
    assert served(tools, key(query="cheap hotel in paris")) is None


def test_modes() -> None:
    recording, replaying = cache(mode="record"), cache(mode="record_replay")
    for tools in (recording, replaying):
        record(tools, key(query="a"), of=1)
    assert served(recording, key(query="a")) is None
    assert served(replaying, key(query="a")) == ("exact", {"of": 1})
    assert open_cache(ToolCacheSection()) is None


def test_replay_mode_records_nothing() -> None:
    store = MemoryStore(max_entries=9, max_bytes=9999)
    tools = ToolCache(store, ToolCacheSection(mode="replay", path="unused"))
    record(tools, key(query="a"), of=1)
    tools.record_listing("web", "[]")
    assert (len(store), tools.listing("web")) == (0, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (" New\t York ", "new york"),
        ("2.50", 2.5),
        (3.0, 3),
        ("3", 3),
        ("-4.0", -4),
        ("007", "007"),
        ("1,000", "1,000"),
        (True, True),
        (None, None),
        ({"a": ["X ", 1.0]}, {"a": ["x", 1]}),
        ("STRASSE", "strasse"),
        ("straße", "strasse"),
        ("12345678901234567890", "12345678901234567890"),
    ],
)
def test_normal_form(value: Any, expected: Any) -> None:
    found = normal(value)
    assert (found, type(found)) == (expected, type(expected))


def test_similarity_is_one_only_for_one_normal_form() -> None:
    assert similarity("A  b", "a B") == similarity(1, "1.0") == 1.0
    assert similarity(1, True) == similarity("a", 3) == similarity([1], [2]) == 0.0
    assert 0 < similarity("abc", "abd") < 1


def serve(tools: ToolCache, call: CallKey, results: list[Any], *, at_once: int) -> list[Any]:
    """Ask for `call` so many times at once; the tool gives `results` one after the other, raising those that are errors."""

    async def live() -> Recorded:
        await asyncio.sleep(0.01)
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return Recorded(key=call, result=result)

    async def ask() -> list[Any]:
        asked = [tools.serve(call, read_only=True, call=live) for _ in range(at_once)]
        return await asyncio.gather(*asked, return_exceptions=True)

    return [hit if isinstance(hit, Exception) else (hit.tier, hit.recorded.result) for hit in asyncio.run(ask())]


def test_of_several_that_ask_at_once_one_calls_the_tool() -> None:
    found = ToolResult(content={"of": 1})
    assert serve(cache(), key(query="a"), [found], at_once=3) == [("live", found), ("exact", found), ("exact", found)]


def test_what_may_pass_is_not_recorded_and_the_next_one_tries() -> None:
    passing, found, failure = (
        ToolResult(error="busy", lasting=False),
        ToolResult(error="no such city"),
        NoResultError("timeout"),
    )
    served = serve(cache(), key(query="a"), [failure, passing, found], at_once=4)
    assert served == [failure, ("live", passing), ("live", found), ("exact", found)]


def test_record_mode_always_calls() -> None:
    one, two = ToolResult(content={"of": 1}), ToolResult(content={"of": 2})
    assert serve(cache(mode="record"), key(query="a"), [one, two], at_once=2) == [("live", one), ("live", two)]


def test_replay_mode_never_calls(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    record(cache(mode="record", path=path), key(query="a"), of=1)
    tools = cache(mode="replay", path=path)
    assert serve(tools, key(query="a"), [], at_once=1) == [("exact", ToolResult(content={"of": 1}))]
    (refused,) = serve(tools, key(query="b"), [], at_once=1)
    assert isinstance(refused, NoResultError)
    assert (refused.kind, refused.text) == ("unrecorded", "not recorded")
