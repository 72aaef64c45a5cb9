"""A live tool is recorded once; then a run trains on the recording, with the tool switched off."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cacherl.environment_settings import EnvSection, ToolCacheSection
from envs.agents import OracleAgent
from envs.base import TaskSource
from envs.episode import play
from live_tools import CITIES, WEATHER_URL, make_mcp_weather, make_weather, weather_server
from support import PROJECT, MarkedProcess, train_command

SMALL = ["run.updates=2", "eval.tasks=6", "eval.every=2", "env.levels=[1]", "ray.dashboard=false"]


def recording_section(path: Path) -> EnvSection:
    return EnvSection(levels=(1,), transient_failure_rate=0.0, tool_cache=ToolCacheSection(mode="record", path=path))


def record(source: TaskSource) -> None:
    for index in range(len(CITIES)):
        task = source.get(f"{source.family}/train/1/{index}")
        assert asyncio.run(play(source.make_env(), task, OracleAgent(source), rollout_seed=0, max_turns=4)).outcome == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "mcp"])
def test_a_run_trains_on_what_was_recorded_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tools.jsonl"
    if kind == "http":
        with weather_server() as server:
            monkeypatch.setenv(WEATHER_URL, server.url)
            record(make_weather(recording_section(path)))
        monkeypatch.delenv(WEATHER_URL)
    else:
        record(make_mcp_weather(recording_section(path)))
    recorded = path.read_bytes()
    name = {"http": "live_tools:make_weather", "mcp": "live_tools:make_mcp_weather"}[kind]
    overrides = [
        *SMALL, f"run.name={kind}", f"run.dir={tmp_path}", f"warm_start.cache_dir={tmp_path}", f"env.name={name}",
        "env.tool_cache.mode=replay", f"env.tool_cache.path={path}",
    ]  # fmt: skip
    environment = {"PYTHONPATH": f"{PROJECT}:{PROJECT / 'tests'}", "TEST_MCP_SERVER": "/nonexistent.py"}
    run = MarkedProcess(train_command("smoke", *overrides), environment, output=tmp_path / "output.txt").start()
    assert run.wait(220) == 0, run.text()[-4000:]
    summary = json.loads((tmp_path / kind / "summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("succeeded", 2)
    rows: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / kind / "metrics.jsonl").read_text().splitlines()]
    rates = [row["tool_cache/hit_rate"] for row in rows if "tool_cache/hit_rate" in row]
    assert rates
    assert set(rates) == {1.0}  # every result was served, none was live
    assert path.read_bytes() == recorded
    assert run.leftovers()[0] == {}
