"""Live tools, recorded once and replayed: a real HTTP server on loopback and a real MCP server over stdio."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cacherl.environment_settings import EnvSection, ToolCacheSection
from cacherl.errors import ConfigError, EnvironmentFault
from envs.agents import OracleAgent
from envs.base import EnvStep, PlannedCall, TaskSource
from envs.episode import play
from envs.live.http import HttpTool, HttpToolkit
from envs.live.mcp import McpToolkit
from envs.live.source import LiveSource, LiveTask
from live_tools import CITIES, MCP_SERVER, WEATHER_URL, Weather, make_mcp_weather, make_weather, weather_server, weather_toolkit
from support import PROJECT, MarkedProcess

BERN, ROME = (PlannedCall(name="warmth", arguments={"city": city}) for city in ("bern", "rome"))


def section(**cache: Any) -> EnvSection:
    return EnvSection(levels=(1,), transient_failure_rate=0.0, tool_cache=ToolCacheSection(**cache))


def acted(source: TaskSource, calls: Sequence[PlannedCall]) -> list[EnvStep]:
    async def act() -> list[EnvStep]:
        env = source.make_env()
        await env.reset(source.get(f"{source.family}/train/1/0"), rollout_seed=0)
        try:
            return [await env.step(source.format.render([call])) for call in calls]
        finally:
            await env.close()

    return asyncio.run(act())


def told(steps: Sequence[EnvStep]) -> list[tuple[str, str | None, str | None]]:
    return [(step.messages[0].content, step.calls[0].error, step.calls[0].tier) for step in steps]


def solved(source: TaskSource, *, siblings: int = 1) -> tuple[list[float], Counter[Any]]:
    """Outcomes of the oracle on every question, siblings at the same time, and the tiers of the results."""

    async def group(task_id: str) -> Any:
        members = [
            play(source.make_env(), source.get(task_id), OracleAgent(source), rollout_seed=index, max_turns=6)
            for index in range(siblings)
        ]
        return await asyncio.gather(*members)

    played = [episode for index in range(len(CITIES)) for episode in asyncio.run(group(f"{source.family}/train/1/{index}"))]
    tiers = Counter(call.tier for episode in played for turn in episode.turns for call in turn.step.calls)
    return [episode.outcome for episode in played], tiers


@pytest.fixture
def weather(monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    with weather_server() as server:
        monkeypatch.setenv(WEATHER_URL, server.url)
        yield server


def test_http_recorded_once_and_replayed_without_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weather.jsonl"
    with weather_server() as server:
        monkeypatch.setenv(WEATHER_URL, server.url)
        assert solved(make_weather(section(mode="record", path=path))) == ([1.0] * 3, {"live": 3})
        assert sorted(server.requests) == ["/warmth/bern", "/warmth/oslo", "/warmth/rome"]
    monkeypatch.delenv(WEATHER_URL)
    replay = make_weather(section(mode="replay", path=path))
    assert solved(replay, siblings=4) == ([1.0] * 12, {"exact": 12})
    assert {"bern", "21", "celsius"} <= set(replay.vocabulary())
    unknown = PlannedCall(name="warmth", arguments={"city": "paris"})
    assert told(acted(replay, [unknown])) == [('{"error":"not recorded"}', "unrecorded", None)]


def test_siblings_that_ask_at_once_cost_one_request(weather: Weather) -> None:
    outcomes, tiers = solved(make_weather(section(mode="record_replay")), siblings=8)
    assert (outcomes, tiers) == ([1.0] * 24, {"live": 3, "exact": 21})
    assert len(weather.requests) == 3


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_what_may_pass_is_not_recorded(weather: Weather, status: int) -> None:
    weather.script = [status, 200]
    steps = acted(make_weather(section(mode="record_replay")), [BERN, BERN, BERN])
    found = '{"city":"bern","celsius":12}'
    assert told(steps) == [('{"error":"timeout"}', "transient", None), (found, None, "live"), (found, None, "exact")]


def test_a_lasting_error_is_recorded(weather: Weather) -> None:
    paris = PlannedCall(name="warmth", arguments={"city": "paris"})
    steps = acted(make_weather(section(mode="record_replay")), [paris, paris])
    assert told(steps) == [('{"error":"status 404"}', "tool", "live"), ('{"error":"status 404"}', "tool", "exact")]
    assert len(weather.requests) == 1


def test_arguments_stay_within_their_place_in_the_url(weather: Weather) -> None:
    escape = PlannedCall(name="warmth", arguments={"city": "../x?unit=k#", "unit": "f&city=rome"})
    acted(make_weather(section()), [escape])
    assert weather.requests == ["/warmth/..%2Fx%3Funit%3Dk%23?unit=f%26city%3Drome"]
    for city, error in (
        ("", "city must not be empty, . or .."),
        ("..", "city must not be empty, . or .."),
        (".", "city must not be empty, . or .."),
        ("😀" * 8000, "the arguments are too long"),
    ):
        steps = acted(make_weather(section()), [PlannedCall(name="warmth", arguments={"city": city})])
        assert told(steps) == [(f'{{"error":"{error}"}}', "tool", None)]
    assert len(weather.requests) == 1


def test_no_server_and_a_slow_one_are_failures_of_the_world() -> None:
    tasks = [LiveTask(prompt="?", answer="")]
    nobody = LiveSource(section(), "weather", [weather_toolkit("http://127.0.0.1:1")], tasks)
    assert told(acted(nobody, [BERN])) == [('{"error":"timeout"}', "transient", None)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        toolkit = weather_toolkit(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1)
        slow = LiveSource(section(), "weather", [toolkit], tasks)
        assert told(acted(slow, [BERN])) == [('{"error":"timeout"}', "timeout", None)]


def test_an_endpoint_that_changes_something_and_a_url_of_unknown_arguments_are_refused() -> None:
    spec = weather_toolkit("http://x").specs()[0]
    with pytest.raises(ValueError, match=r"url 'http://x/\{town\}' names \['town'\], not a required argument"):
        HttpTool(spec=spec, url="http://x/{town}")
    with pytest.raises(ValueError, match="toolkit 'w': warmth must be read_only, since all episodes share the endpoint"):
        HttpToolkit("w", [HttpTool(spec=replace(spec, read_only=False), url="http://x")])


def test_replay_of_a_toolkit_that_was_never_recorded_says_what_to_do(tmp_path: Path, weather: Weather) -> None:
    path = tmp_path / "weather.jsonl"
    solved(make_weather(section(mode="record", path=path)))
    other = HttpToolkit("other", [])
    with pytest.raises(ConfigError, match=r"nothing is recorded of toolkit 'other'; run once with env\.tool_cache"):
        LiveSource(section(mode="replay", path=path), "weather", [other], [])


# MCP


def test_mcp_recorded_once_and_replayed_without_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    path = tmp_path / "mcp.jsonl"
    assert solved(make_mcp_weather(section(mode="record", path=path))) == ([1.0] * 3, {"live": 3})
    monkeypatch.setenv("TEST_MCP_SERVER", "/nonexistent.py")
    began = time.monotonic()
    replay = make_mcp_weather(section(mode="replay", path=path))
    assert solved(replay, siblings=4) == ([1.0] * 12, {"exact": 12})
    assert time.monotonic() - began < 1.0  # no process was started
    assert [spec.description for spec in replay.tools()] == ["How warm a city is."]


@dataclass(frozen=True, slots=True)
class Shelf:
    """A server with state, started anew by every live episode, and the file in which it notes its calls."""

    toolkit: McpToolkit
    calls: Path
    command: list[str]

    def source(self, mode: str = "record_replay") -> LiveSource:
        return LiveSource(section(mode=mode), "shelf", [self.toolkit], [LiveTask(prompt="Fill the shelf.", answer="1")])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    pytest.importorskip("mcp")
    calls = tmp_path_factory.mktemp("shelf") / "calls.txt"
    calls.touch()
    command = [sys.executable, str(MCP_SERVER), "shelf"]
    return Shelf(McpToolkit("shelf", command, env={"MCP_CALLS": str(calls)}, timeout_s=30), calls, command)


def put(key: str, value: int) -> PlannedCall:
    return PlannedCall(name="put", arguments={"key": key, "value": value})


LOOK, VANISH = PlannedCall(name="look", arguments={}), PlannedCall(name="vanish", arguments={})


def test_an_mcp_server_with_state_begins_anew_in_every_episode(shelf: Shelf) -> None:
    source = shelf.source()
    assert [(spec.name, spec.read_only) for spec in source.tools()] == [
        ("put", False),
        ("look", True),
        ("drop", False),
        ("stamp", False),
        ("vanish", False),
    ]
    assert told(acted(source, [put("a", 1), LOOK])) == [('{"held":{"a":1}}', None, "live")] * 2
    assert told(acted(source, [LOOK, put("b", 2), LOOK])) == [
        ('{"held":{}}', None, "live"),
        ('{"held":{"b":2}}', None, "live"),
        ('{"held":{"b":2}}', None, "live"),
    ]
    assert told(acted(source, [put("b", 2), LOOK])) == [('{"held":{"b":2}}', None, "exact")] * 2
    before = shelf.calls.read_text()
    assert told(acted(source, [put("b", 2), put("c", 3)]))[1] == ('{"held":{"b":2,"c":3}}', None, "live")
    assert shelf.calls.read_text().removeprefix(before) == "put b 2\nput c 3\n"  # what was served is made up for


def test_an_error_of_an_mcp_tool_may_pass(shelf: Shelf) -> None:
    source, before = shelf.source(), shelf.calls.read_text()
    drop = PlannedCall(name="drop", arguments={"key": "x"})
    for step in (*acted(source, [drop]), *acted(source, [drop])):
        assert (step.calls[0].error, step.calls[0].tier) == ("tool", "live")
    assert shelf.calls.read_text().removeprefix(before) == "drop x\ndrop x\n"


def test_a_server_that_dies_costs_one_call_and_its_successor_is_brought_up_to_date(shelf: Shelf) -> None:
    source, before = shelf.source(mode="off"), shelf.calls.read_text()
    steps = acted(source, [put("a", 1), VANISH, LOOK, VANISH, put("b", 2)])
    assert [step.calls[0].error for step in steps] == [None, "transient", None, "transient", None]
    assert [steps[2].messages[0].content, steps[4].messages[0].content] == ['{"held":{"a":1}}', '{"held":{"a":1,"b":2}}']
    made = shelf.calls.read_text().removeprefix(before).split("\n")
    assert made == ["put a 1", "vanish", "put a 1", "look", "vanish", "put a 1", "put b 2", ""]


@pytest.mark.parametrize("varying", [(), ("at",)])
def test_a_successor_may_answer_otherwise_in_the_fields_that_vary(shelf: Shelf, varying: tuple[str, ...]) -> None:
    toolkit = McpToolkit("stamps", shelf.command, varying=varying, timeout_s=30)
    source = LiveSource(section(), "shelf", [toolkit], [LiveTask(prompt="Fill the shelf.", answer="1")])
    calls = [PlannedCall(name="stamp", arguments={"key": "a"}), VANISH, LOOK]
    if varying:
        assert told(acted(source, calls))[2] == ('{"held":{"a":0}}', None, None)
    else:
        with pytest.raises(EnvironmentFault, match=r"^tool 'stamp' of toolkit 'stamps', called again .* otherwise in 'at': "):
            acted(source, calls)


def test_an_endpoint_that_never_comes_to_an_end_is_a_time_out(weather: Weather) -> None:
    """It sends a byte every now and then, so that no wait for the next one is long."""
    weather.drip_s = 0.1
    toolkit = weather_toolkit(weather.url, timeout_s=0.5)
    source = LiveSource(section(), "weather", [toolkit], [LiveTask(prompt="?", answer="1")])
    begin = time.monotonic()
    assert told(acted(source, [BERN])) == [('{"error":"timeout"}', "timeout", None)]
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"<html>no</html>", '{"text":"<html>no</html>"}'),
        (b'{"a":"\\ud800"}', '{"a":"?"}'),
        (b'{"a":NaN}', '{"text":"{\\"a\\":NaN}"}'),
        (b"[" * 100_000, '{"text":"' + "[" * 4000 + '"}'),
        (b"[" * 500 + b"]" * 500, '{"text":"' + "[" * 500 + "]" * 500 + '"}'),
        (b"x" * 10_000_000, '{"error":"the answer is too long"}'),
    ],
    ids=["html", "half a surrogate pair", "nan", "endless nesting", "deep nesting", "10 MB"],
)
def test_whatever_an_endpoint_says_is_shown_as_text_that_can_be_sent(weather: Weather, body: bytes, shown: str) -> None:
    weather.body = body
    assert told(acted(make_weather(section()), [BERN]))[0][0] == shown


def test_an_endpoint_is_told_nothing_of_other_episodes(weather: Weather) -> None:
    acted(make_weather(section()), [BERN, ROME])
    assert weather.cookies == [None, None]


def test_a_command_that_is_no_mcp_server_is_a_fault_that_names_it() -> None:
    pytest.importorskip("mcp")
    toolkit = McpToolkit("broken", [sys.executable, "-c", "pass"], timeout_s=5)
    with pytest.raises(EnvironmentFault, match=r"toolkit 'broken': .* does not list its tools"):
        LiveSource(section(), "broken", [toolkit], [])


def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"MCP servers need the package mcp; pip install '\.\[mcp\]'"):
        McpToolkit("any", ["server"])


def test_a_server_ends_with_its_process_however_that_dies(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    script = (
        "import asyncio, sys, time\n"
        "from live_tools import make_mcp_weather\n"
        "from cacherl.environment_settings import EnvSection\n"
        "source = make_mcp_weather(EnvSection(levels=(1,), transient_failure_rate=0.0))\n"
        "async def act():\n"
        "    env = source.make_env()\n"
        "    await env.reset(source.get('mcp_weather/train/1/0'), rollout_seed=0)\n"
        '    step = await env.step(\'[TOOL_CALL] mcp_warmth {"city":"bern"} [/TOOL_CALL]\')\n'
        "    assert step.calls[0].ok, step\n"
        "asyncio.run(act())\n"
        "print('called', flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {"PYTHONPATH": f"{PROJECT}:{PROJECT / 'tests'}"}
    process = MarkedProcess([sys.executable, "-c", script], environment, output=tmp_path / "out.txt").start()
    process.wait_for(lambda: "called" in process.text(), "the call", 60)
    process.send(signal.SIGKILL)
    process.wait(10)
    assert process.leftovers()[0] == {}
