"""The example of docs/environments.md is a working environment."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from cacherl.environment_settings import EnvSection
from envs.agents import OracleAgent
from envs.base import PlannedCall
from envs.episode import play
from envs.registry import load_source

DOCS = Path(__file__).parents[2] / "docs" / "environments.md"


def test_the_tool_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n# my_env\.py.*?\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "my_fruit_env.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = load_source(EnvSection(name="my_fruit_env:make_source", levels=(1,), transient_failure_rate=0.0))
    for split in ("train", "val"):
        task = source.sample(random.Random(0), split=split, level=1)
        episode = asyncio.run(play(source.make_env(), task, OracleAgent(source), rollout_seed=0, max_turns=4))
        assert episode.outcome == 1.0

    async def wrong() -> str:
        env = source.make_env()
        await env.reset(task, rollout_seed=0)
        step = await env.step(source.format.render([PlannedCall(name="price", arguments={"fruit": "stone"})]))
        return step.messages[0].content

    assert asyncio.run(wrong()) == '{"error":"no such fruit"}'
