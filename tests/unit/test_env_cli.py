"""`cacherl env list`, `check` and `play`, and `cacherl train --env`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from envs.check import CHECKS
from support import PROJECT

EASY = """
from dataclasses import replace
from envs.research.family import ResearchFamily
from envs.simulator import ToolResult

class Easy(ResearchFamily):
    def build(self, *, split, level, seed):
        scenario = super().build(split=split, level=level, seed=seed)
        class Simulator:
            def call(self, name, arguments): return ToolResult()
            def answer(self, value): return 1.0
            def verdict(self): return 0.0
            def state(self): return {}
            def restore(self, state): pass
        return replace(scenario, start=Simulator)
"""


def run(*arguments: str, typed: str | None = None):
    return CliRunner().invoke(app, ["env", *arguments], input=typed, env={"COLUMNS": "120"})


@pytest.fixture
def easy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "easy_env.py").write_text(EASY)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "easy_env:Easy"


def test_list_shows_levels_and_tools():
    result = run("list")
    assert result.exit_code == 0
    for part in ("research", "trip", "data", "train 1-3, val 1-3, comp 2-3", "search, read", "package.module:Name"):
        assert part in result.output
    rows = {row["name"]: row for row in json.loads(run("list", "--json").output)}
    assert rows["trip"]["levels"] == {
        "train": [1, 2, 3, 4, 5, 6],
        "val": [1, 2, 3, 4, 5, 6],
        "comp": [2, 3, 4, 5, 6],
        "deep": [7, 8],
    }
    assert rows["data"]["tools"] == ["tables", "columns", "query", "calc"]


def test_check_of_a_sound_environment():
    result = run("check", "research", "env.action_format=hermes", "--tasks", "2")
    assert result.exit_code == 0, result.output
    assert f"{len(CHECKS)} promises: all kept" in result.output
    assert result.output.count("kept  ") == len(CHECKS)


def test_check_says_what_a_failure_means_and_what_to_do(easy):
    result = run("check", easy, "--tasks", "3")
    assert result.exit_code == 1
    assert "broken  random: random calls succeed in" in result.output
    assert "which means: success says little: it can be had without skill" in result.output
    assert "what to do:  ask for a longer or a rarer answer" in result.output
    assert "broken  bare answer: 18 of 18 tasks reward the answer without any call" in result.output
    answer = json.loads(run("check", easy, "--tasks", "3", "--json").output)
    assert (answer["env"], answer["passed"]) == (easy, False)
    broken = {finding["check"] for finding in answer["findings"] if finding["problem"]}
    assert broken == {"random", "bare answer", "verdict", "vocabulary"}
    assert all(finding["meaning"] and finding["remedy"] for finding in answer["findings"])


def play(*arguments: str, typed: list[str]) -> str:
    result = run("play", *arguments, typed="\n".join(typed) + "\n")
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_a_person_can_solve_a_task():
    output = play(
        "research",
        "--task=research/train/1/8",
        "env.transient_failure_rate=0",
        typed=[
            "/hint",
            "search nobody",
            "fly",
            "search name=jisen",
            '[TOOL_CALL] read {"id":"d9","field":"mood"} [/TOOL_CALL]',
        ],
    )
    assert "user: Who is " in output
    assert "id: string, field: boss | friend | rival" in output
    assert '{"error":"not found"}  (irrelevant, first, tool)' in output
    assert "there is no tool 'fly'; the tools are search, read (/help)" in output
    assert "field must be boss, friend" in output
    assert "reward tool_use -0.10 step_penalty -0.02" in output
    assert "verdict 0\n" in output
    hint = next(line for line in output.splitlines() if line.startswith("[TOOL_CALL] search"))
    person = json.loads(hint.split(" ", 2)[2].removesuffix(" [/TOOL_CALL]"))["name"]
    found = play("research", "--task=research/train/1/8", "env.transient_failure_rate=0", typed=[f"search {person}", "/hint"])
    read = found.splitlines()[-3]
    solved = play(
        "research",
        "--task=research/train/1/8",
        "env.transient_failure_rate=0",
        typed=[f"search {person}", read, "/hint"],
    )
    answer = solved.splitlines()[-3].removeprefix("[ANSWER] ")
    output = play(
        "research",
        "--task=research/train/1/8",
        "env.transient_failure_rate=0",
        typed=[f"search {person}", read, f"/answer {answer}", "never read"],
    )
    assert "verdict 1\n" in output
    assert "return +1.04 = final +1.00 tool_use +0.10 step_penalty -0.06" in output


def test_an_episode_is_cut_off_and_may_be_left():
    assert "cut off after 2 turns (env.max_turns)" in play("trip", "env.max_turns=2", typed=["budget", "budget", "budget"])
    output = play("trip", "--level=5", "--split=val", typed=["/quit", "budget"])
    assert output.startswith("trip/val/5/")
    assert "reward" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["play", "trip", "--split", "test"], "--split: 'trip' has no split 'test'"),
        (["play", "trip", "--level", "9"], "got level 9"),
        (["play", "trip", "--task", "data/train/1/1"], "is of family 'data', not 'trip'"),
        (["check", "easy_env:Hard"], "has no class or function 'Hard'"),
        (["check", "trip", "env.settings.size=3"], "env.settings.size: the environment has no such setting"),
    ],
)
def test_mistakes_are_explained(easy, arguments, message):
    assert message in str(run(*arguments).exception)


def test_the_command_finds_modules_of_the_current_folder_and_stays_light(tmp_path):
    (tmp_path / "easy_env.py").write_text(EASY)
    code = (
        "import sys; from deploy.cli import main; sys.argv[1:] = ['env', 'check', 'easy_env:Easy', '--tasks', '1', '--json']\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, sorted({'torch', 'ray', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "1 []"
    assert json.loads(done.stdout.splitlines()[0])["env"] == "easy_env:Easy"


def test_train_refuses_a_broken_environment_before_anything_starts(tmp_path):
    (tmp_path / "half_env.py").write_text(
        "from envs.research.family import ResearchFamily\n"
        "from dataclasses import replace\n"
        "class Half(ResearchFamily):\n"
        "    def build(self, *, split, level, seed):\n"
        "        return replace(super().build(split=split, level=level, seed=seed), start=object)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "deploy", "train", "--env", "half_env:Half", f"run.dir={tmp_path}/runs"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "error: env.name 'half_env:Half': object is no Simulator: it lacks the method call(" in done.stderr
    assert not (tmp_path / "runs").exists()
