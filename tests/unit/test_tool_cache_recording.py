"""A recording on disk: what one process wrote, another serves, and a torn line costs no other."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from cacherl.environment_settings import ToolCacheSection
from cacherl.errors import ConfigError
from envs.simulator import ToolResult
from envs.tool_cache.cache import open_cache
from envs.tool_cache.entry import CallKey, Recorded
from envs.tool_cache.memory import MemoryStore
from envs.tool_cache.recording import HEADER, Recording


def recorded(number: int, *, text: str = "x") -> Recorded:
    key = CallKey(state="s", tool="read", arguments={"id": number})
    return Recorded(key=key, result=ToolResult(content={"text": text}))


def store(path: Path, *, keep: int = 100, needed: bool = False) -> MemoryStore:
    return MemoryStore(max_entries=keep, max_bytes=10**6, recording=Recording(path, keep=keep, needed=needed))


def numbers(path: Path, *, keep: int = 100) -> list[Any]:
    return sorted(entry.key.arguments["id"] for entry in store(path, keep=keep).results())


def test_what_was_recorded_is_there_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tools.jsonl"
    first = store(path)
    first.put(recorded(1, text="old"))
    first.put(recorded(1, text="new"))
    first.put(recorded(1, text="new"))
    first.put_listing("web", "[]")
    assert len(path.read_text().splitlines()) == 4  # the header, two results, a listing: nothing is written twice
    second = store(path, needed=True)
    assert [entry.result.content for entry in second.results()] == [{"text": "new"}]
    assert second.get_listing("web") == "[]"


def test_a_line_that_a_killed_process_left_half_written_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tools.jsonl"
    store(path).put(recorded(1))
    with path.open("a") as file:
        file.write(recorded(2).dump()[:30])
    assert numbers(path) == [1]
    assert "is cut off" in caplog.text
    store(path).put(recorded(3))
    assert numbers(path) == [1, 3]
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n", "is not a recording of tool results"),
        (f'{HEADER}\nnonsense\n{{"toolkit":"web","tools":""}}\n', "line 2 of .*: Expecting value"),
        (f'{HEADER}\n{{"state":"s"}}\n\n', "line 2 of .*: not a recorded tool result: KeyError"),
        (f"{HEADER}\n{'[' * 100_000}\n\n", "line 2 of .*: not a recorded tool result: RecursionError"),
        (f'{HEADER}\n{{"toolkit":"web"}}\n\n', "line 2 of .*: not a listing of tools"),
        (f'{HEADER}\n{{"toolkit":3,"tools":[]}}\n\n', "line 2 of .*: not a listing of tools"),
        *(
            (f"{HEADER}\n{recorded(1).dump().replace(*damage)}\n\n", "line 2 of .*: not a recorded tool result: TypeError")
            for damage in (
                ('"s"', "3"),
                ('"read"', "null"),
                ('{"id":1}', "[1]"),
                ('{"text":"x"}', "null"),
                ('"error":null', '"error":5'),
                ('"kind":"tool"', '"kind":3'),
                ('"tags":[]', '"tags":{}'),
            )
        ),
    ],
)
def test_a_foreign_or_damaged_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tools.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"env\.tool_cache\.path: .*{message}"):
        store(path)


@pytest.mark.parametrize("name", [".", "/dev/null", "/proc/none/tools.jsonl"])
@pytest.mark.parametrize("mode", ["record", "record_replay"])
def test_a_place_where_nothing_can_be_recorded_is_refused_at_once(tmp_path: Path, name: str, mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"env\.tool_cache\.path: .* (cannot be written to|is no file)"):
        open_cache(ToolCacheSection(mode=mode, path=tmp_path / name))


def test_replay_without_a_recording_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recording at .*none\.jsonl; make one with env\.tool_cache\.mode=record"):
        open_cache(ToolCacheSection(mode="replay", path=tmp_path / "none.jsonl"))


def test_the_file_stays_bounded_and_keeps_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    kept = store(path, keep=10)
    kept.put_listing("web", "[]")
    for number in range(200):
        kept.put(recorded(number))
        assert len(path.read_text().splitlines()) <= 2 * 10 + 18
    assert numbers(path, keep=10) == list(range(190, 200))
    assert store(path).get_listing("web") == "[]"
    assert list(tmp_path.iterdir()) == [path]


def _write(path: Path, first: int) -> None:
    writer = store(path, keep=1000)
    for number in range(first, first + 100):
        writer.put(recorded(number))


def test_processes_that_record_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, 100 * index)) for index in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert numbers(path, keep=1000) == list(range(300))


def test_a_recording_made_in_one_process_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "tools.jsonl"
    recording = open_cache(ToolCacheSection(mode="record", path=path))
    assert recording is not None
    asyncio.run(recording.record(recorded(7)))
    replaying = open_cache(ToolCacheSection(mode="replay", path=path))
    assert replaying is not None
    hit = asyncio.run(replaying.find(recorded(7).key, read_only=True))
    assert hit is not None
    assert (hit.tier, hit.recorded) == ("exact", recorded(7))
    assert list(replaying.texts()) == ['{"text":"x"}']
