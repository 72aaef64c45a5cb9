"""The worked example of docs/rewards.md is short, and works."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from reward_data import bad, calls, episode, good, run_config
from rewards.composer import Composer

DOCS = Path(__file__).resolve().parents[2] / "docs" / "rewards.md"


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    """search, read, a failed and a repeated search: two new tools are 0.08, one failure -0.004."""
    text = DOCS.read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (settings,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert len(code.splitlines()) + len(settings.splitlines()) < 40
    (tmp_path / "my_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    composer = Composer.from_config(run_config(yaml.safe_load(settings)["reward"]))
    search, read = good(name="search"), good(name="read")
    (scored,) = composer.score([episode(calls(search), calls(read), calls(bad("tool"), search))])
    assert [turn.rewards["curiosity"] for turn in scored.turns] == [0.04, 0.04, 0.0]
    assert scored.rewards["curiosity"] == -0.004
