"""What `cacherl config` prints is a config, and says what its keys mean."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from cacherl.config import load_config
from cacherl.replay_settings import ReplaySettings
from deploy.config_text import annotated

CONFIGS = sorted((Path(__file__).parents[2] / "deploy" / "configs").glob("*.yaml"))
OWN_PART = "reward.components=[{path: mine.Part, name: part, weight: 0.1, settings: {words: ['a: b', '#c']}}]"


@pytest.mark.parametrize("config", [None, *CONFIGS], ids=lambda path: path.stem if path else "defaults")
@pytest.mark.parametrize("overrides", [[], ["env.settings={a: {b: 3}}", "env.levels=[2,1]", OWN_PART]])
def test_it_reads_back_the_same(tmp_path: Path, config: Path | None, overrides: list[str]) -> None:
    settings = load_config(config, overrides)
    path = tmp_path / "config.yaml"
    path.write_text(annotated(settings))
    assert load_config(path) == settings


def test_text_of_several_lines_reads_back_the_same(tmp_path: Path) -> None:
    settings = load_config(
        None, ["reward.judge={weight: 0.1, url: 'http://h/v1', model: m, instructions: \"one\\n\\n  two: #3\"}"]
    )
    assert settings.reward.judge.instructions == "one\n\n  two: #3"
    path = tmp_path / "config.yaml"
    path.write_text(annotated(settings))
    assert load_config(path) == settings


def test_meanings_stand_behind_the_keys() -> None:
    lines = annotated(load_config(None)).splitlines()
    assert "eval:  # Greedy evaluation on held-out tasks." in lines
    assert "  updates: 100  # optimizer steps after the warm start" in lines
    assert "    file_mb: 1  # size of a file" in lines
    assert "  betas: [0.9, 0.999]  # of AdamW" in lines


def test_every_key_of_the_replay_service_has_a_meaning() -> None:
    lines = annotated(load_config(None)).splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("replay:"))
    section = lines[begin + 1 : begin + 1 + len(fields(ReplaySettings))]
    assert [line.split(":")[0].strip() for line in section] == [field.name for field in fields(ReplaySettings)]
    assert all("  # " in line and len(line.split("  # ")[1]) > 10 for line in section)
