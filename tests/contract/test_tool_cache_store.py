"""What every store of recorded tool results does: in memory, in Redis, in Valkey."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacherl.environment_settings import ToolCacheSection
from cacherl.errors import ConfigError, EnvironmentFault
from envs.simulator import ToolResult
from envs.tool_cache.cache import open_cache
from envs.tool_cache.entry import CallKey, Recorded
from envs.tool_cache.memory import MemoryStore
from envs.tool_cache.normal import normal
from envs.tool_cache.redis_store import RedisStore
from replay_service.server import ReplayServer

_names = itertools.count()
MakeStore = Callable[..., Any]


@pytest.fixture(params=["memory", "redis"])
def make_store(request: pytest.FixtureRequest, server: ReplayServer) -> Iterator[MakeStore]:
    opened: list[Any] = []

    def make(*, max_entries: int = 1000, max_bytes: int = 10**6) -> Any:
        if request.param == "memory":
            opened.append(MemoryStore(max_entries=max_entries, max_bytes=max_bytes))
        else:
            opened.append(RedisStore(server.url, f"tools-{next(_names)}", max_entries=max_entries, max_bytes=max_bytes))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def recorded(number: int, *, state: str = "s", text: str = "", error: str | None = None) -> Recorded:
    key = CallKey(state=state, tool="read", arguments={"id": f"D {number}", "n": 1.5})
    return Recorded(key=key, result=ToolResult(content={"text": text}, error=error, tags=("first",)), after={"n": [number]})


def test_a_result_comes_back_whole_by_each_of_its_names(make_store: MakeStore) -> None:
    store = make_store()
    one, two = recorded(1, text="ü"), recorded(2, error="no such document")
    for entry in (one, two):
        store.put(entry)
    assert store.get(one.key.exact) == one
    assert store.get(two.key.exact) == two
    assert store.get_normalised(CallKey(state="s", tool="read", arguments={"n": "1.50", "id": "d  1"}).normalised) == one
    assert store.candidates(one.key.bucket) == [(e.key.exact, normal(e.key.arguments)) for e in (one, two)]  # one was used last
    assert sorted(entry.after["n"][0] for entry in store.results()) == [1, 2]
    assert store.get(recorded(1, state="t").key.exact) is None
    assert store.candidates(recorded(1, state="t").key.bucket) == []


def test_the_later_result_of_a_call_counts_and_what_is_handed_out_is_a_copy(make_store: MakeStore) -> None:
    store = make_store()
    store.put(recorded(1, text="old"))
    store.put(recorded(1, text="new"))
    found = store.get(recorded(1).key.exact)
    assert (found.result.content, len(store)) == ({"text": "new"}, 1)
    found.after["n"].append("changed")
    assert store.get(recorded(1).key.exact).after == {"n": [1]}


def test_the_least_recently_used_go_first(make_store: MakeStore) -> None:
    store = make_store(max_entries=3)
    for number in (1, 2, 3):
        store.put(recorded(number))
    store.get(recorded(1).key.exact)
    store.put(recorded(4))
    assert [store.get(recorded(number).key.exact) is not None for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert store.get_normalised(recorded(2).key.normalised) is None
    assert len(store.candidates(recorded(1).key.bucket)) == len(store) == 3


def test_bytes_are_bounded_and_what_is_too_large_is_not_kept(make_store: MakeStore) -> None:
    size = len(recorded(1, text="x" * 1000).dump())
    store = make_store(max_bytes=3 * size)
    for number in range(1, 8):
        store.put(recorded(number, text="x" * 1000))
    assert sorted(entry.after["n"][0] for entry in store.results()) == [5, 6, 7]
    store.put(recorded(9, text="x" * 4000))
    assert len(store) == 3


def test_listings_are_kept_apart(make_store: MakeStore) -> None:
    store = make_store(max_entries=1)
    store.put_listing("web", '[{"name":"search"}]')
    store.put(recorded(1))
    store.put(recorded(2))
    assert (store.get_listing("web"), store.get_listing("other"), len(store)) == ('[{"name":"search"}]', None, 1)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(0, 6)), max_size=30))
def test_every_store_evicts_what_a_plain_model_evicts(make_store: MakeStore, actions: list[tuple[str, int]]) -> None:
    store = make_store(max_entries=4)
    used: list[int] = []  # the model: least recently used first
    for action, number in actions:
        found = store.get(recorded(number).key.exact) if action == "get" else store.put(recorded(number))
        assert (found is not None) == (action == "get" and number in used)
        if action == "put" or number in used:
            used = [*(known for known in used if known != number), number][-4:]
    assert sorted(entry.after["n"][0] for entry in store.results()) == sorted(used)


def test_two_clients_of_one_namespace_share_results(server: ReplayServer) -> None:
    limits = {"max_entries": 9, "max_bytes": 9999}
    writer, reader, other = (RedisStore(server.url, name, **limits) for name in ("shared", "shared", "apart"))
    writer.put(recorded(1))
    assert (reader.get(recorded(1).key.exact), other.get(recorded(1).key.exact)) == (recorded(1), None)
    for store in (writer, reader, other):
        store.close()


def test_a_server_that_cannot_be_reached_is_named_without_its_password() -> None:
    section = ToolCacheSection(mode="replay", store="redis", url="redis://:secret@127.0.0.1:1/0")
    with pytest.raises(ConfigError, match=r"env\.tool_cache\.url: no tool-result cache at redis://:\*\*\*@127\.0\.0\.1:1/0"):
        open_cache(section)


def test_a_server_that_dies_is_a_fault_of_the_environment(server_binary: Any, tmp_path: Any) -> None:
    with ReplayServer(tmp_path, binary=server_binary, max_restarts=0) as running:
        store = RedisStore(running.url, "tools", max_entries=9, max_bytes=9999)
        store.put(recorded(1))
    with pytest.raises(EnvironmentFault, match="tool-result cache at redis"):
        store.get(recorded(1).key.exact)
    store.close()
