"""BFCL through our adapter: the ground truth passes, the verdict is the official one, and model text is never evaluated."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cacherl.environment_settings import EnvSection, ToolCacheSection
from cacherl.errors import ConfigError
from envs.adapters.bfcl.package import CATEGORIES, Entry, entries, read_call, tool_specs
from envs.adapters.bfcl.source import bfcl_source
from envs.adapters.suite import SuiteSource
from envs.agents import PAUSE, OracleAgent
from envs.base import EnvStep, PlannedCall, Task
from envs.episode import play

OFFICIAL = Path(__file__).parents[1] / "bfcl_official.py"
needs_package = pytest.mark.skipif(find_spec("bfcl_eval") is None, reason="needs the package bfcl-eval (extra 'bfcl')")
Turns = list[list[PlannedCall]]


@pytest.fixture(scope="module")
def source() -> SuiteSource[Entry]:
    return bfcl_source(EnvSection(transient_failure_rate=0.0))


def task_of(source: SuiteSource[Entry], level: int, number: int) -> Task:
    return source.all_tasks(level)[number]


@needs_package
@pytest.mark.parametrize("level", CATEGORIES)
def test_the_ground_truth_passes_every_task(source: SuiteSource[Entry], level: int) -> None:
    oracle = OracleAgent(source)

    async def outcome(number: int) -> float:
        return (await play(source.make_env(), task_of(source, level, number), oracle, rollout_seed=0, max_turns=100)).outcome

    failed = [number for number in range(200) if asyncio.run(outcome(number)) != 1.0]
    assert (failed, len(entries(CATEGORIES[level]))) == ([], 200)


def perturbed(entry: Entry, rng: random.Random) -> Turns:
    """The ground truth with up to two faults, none of which need matter."""
    turns = [list(turn) for turn in entry.truth]
    specs = [spec for name in entry.classes for spec in tool_specs(name).values()]
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        turn = rng.choice(turns)
        place = rng.randrange(len(turn) + 1)
        fault = rng.choice(["drop", "repeat", "swap", "argument", "insert", "unknown", "empty"])
        if fault == "insert":
            turn.insert(place, _any_call(rng.choice(specs), entry, rng))
        elif fault == "unknown":
            turn.insert(place, PlannedCall(name="no_such_function", arguments={"x": 1}))
        elif fault == "empty":
            turn.clear()
        elif turn:
            index = rng.randrange(len(turn))
            if fault == "drop":
                del turn[index]
            elif fault == "repeat":
                turn.insert(place, turn[index])
            elif fault == "swap":
                other = rng.randrange(len(turn))
                turn[index], turn[other] = turn[other], turn[index]
            else:
                turn[index] = _changed(turn[index], rng)
    return turns


def _changed(call: PlannedCall, rng: random.Random) -> PlannedCall:
    arguments = dict(call.arguments)
    if arguments and rng.random() < 0.8:
        name = rng.choice(sorted(arguments))
        arguments[name] = rng.choice(["x", 7, 0.5, True, None, [], {"a": 1}, arguments[name], f"{arguments[name]} "])
    else:
        arguments["not_a_parameter"] = 1
    return PlannedCall(name=call.name, arguments=arguments)


def _any_call(spec: Any, entry: Entry, rng: random.Random) -> PlannedCall:
    words = [str(value) for turn in entry.truth for call in turn for value in call.arguments.values()] or ["x"]
    makers = {"string": lambda: rng.choice(words), "integer": lambda: rng.randrange(9), "boolean": lambda: rng.random() < 0.5}
    properties = spec.parameters["properties"]
    chosen = [name for name in properties if name in spec.parameters.get("required", ()) or rng.random() < 0.3]
    return PlannedCall(
        name=spec.name, arguments={name: makers.get(properties[name].get("type"), lambda: [1.0])() for name in chosen}
    )


async def ours(source: SuiteSource[Entry], task: Task, turns: Turns) -> float:
    """Play the calls, one in each step, and end every turn of the user's with words."""
    env = source.make_env()
    await env.reset(task, rollout_seed=0)
    for turn in turns:
        for call in turn:
            await env.step(source.format.render([call]))
        step = await env.step(PAUSE)
        if step.outcome is not None:
            return step.outcome
    raise AssertionError("the last turn did not end the episode")


def python(call: PlannedCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


@needs_package
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_verdict_on_perturbed_episodes_is_the_official_one(source: SuiteSource[Entry], count: int) -> None:
    rng = random.Random(count)
    verdicts, asked = [], []
    for index in range(count):
        level = 1 + index % 4
        entry = rng.choice(entries(CATEGORIES[level]))
        turns = perturbed(entry, rng)
        verdicts.append(int(asyncio.run(ours(source, task_of(source, level, entry.number), turns))))
        steps = [[[python(call)] for call in turn] for turn in turns]
        asked.append(json.dumps({"category": entry.category, "number": entry.number, "turns": steps}))
    done = subprocess.run(
        [sys.executable, str(OFFICIAL)], input="\n".join(asked), capture_output=True, text=True, check=True, timeout=300
    )
    official = [int(line) for line in done.stdout.split()]
    differing = [asked[index] for index in range(count) if verdicts[index] != official[index]]
    assert (differing, len(official)) == ([], count)
    assert 0.2 * count < sum(verdicts) < 0.8 * count


MALICIOUS = [
    "__import__('os').system('touch {path}')",
    "open('{path}', 'w').close()",
    "cd(folder=__import__('pathlib').Path('{path}').touch())",
]


@needs_package
@pytest.mark.parametrize("attack", MALICIOUS)
def test_a_malicious_call_does_nothing(source: SuiteSource[Entry], tmp_path: Path, attack: str) -> None:
    path = tmp_path / "owned"
    code = attack.format(path=path)
    texts = [source.format.render([PlannedCall(name=name, arguments=arguments)]) for name, arguments in [
        (code, {}), ("cd", {"folder": code}), ("cd", {code: 1}), ("_load_scenario", {"scenario": {}}), ("__class__", {}),
        ("__init__", {}), ("__getattribute__", {"name": "__dict__"}), ("mean", {"numbers": code}),
    ]]  # fmt: skip
    task = task_of(source, 1, 0)

    async def act() -> list[EnvStep]:
        env = source.make_env()
        await env.reset(task, rollout_seed=0)
        return [await env.step(text) for text in [*texts, f"[TOOL_CALL] {code} [/TOOL_CALL]", code]]

    steps = asyncio.run(act())
    assert not path.exists()
    assert [call.ok for step in steps for call in step.calls] == [False] * 9
    assert steps[-1].outcome == 0.0
    with pytest.raises(ValueError, match=r"not a call|malformed node"):
        read_call(code)


@needs_package
def test_siblings_share_nothing(source: SuiteSource[Entry]) -> None:
    task = task_of(source, 1, 0)
    calls = source.solution(task).calls[:3]

    async def act() -> Any:
        first, second = source.make_env(), source.make_env()
        for env in (first, second):
            await env.reset(task, rollout_seed=0)
        alone = [await first.step(source.format.render([call])) for call in calls]
        return alone, [await second.step(source.format.render([call])) for call in calls]

    alone, after = asyncio.run(act())
    assert alone == after


@needs_package
def test_a_withheld_function_is_offered_in_its_turn(source: SuiteSource[Entry]) -> None:
    entry = entries("miss_func")[0]
    task = task_of(source, 3, 0)
    assert entry.withheld == {3: ("sort",)}
    assert '"name":"sort"' not in task.messages[0].content
    assert '"name":"grep"' in task.messages[0].content
    episode = asyncio.run(play(source.make_env(), task, OracleAgent(source), rollout_seed=0, max_turns=100))
    offers = [message.content for message in episode.messages if message.role == "user" and "updated" in message.content]
    assert len(offers) == 1
    assert '"name":"sort"' in offers[0]


@needs_package
def test_a_snapshot_resumes(source: SuiteSource[Entry]) -> None:
    task = task_of(source, 4, 7)
    oracle = OracleAgent(source)
    episode = asyncio.run(play(source.make_env(), task, oracle, rollout_seed=0, max_turns=100))
    texts = [turn.text for turn in episode.turns]

    async def resumed() -> list[EnvStep]:
        env, copy = source.make_env(), source.make_env()
        for each in (env, copy):
            await each.reset(task, rollout_seed=0)
        half = len(texts) // 2
        for text in texts[:half]:
            await env.step(text)
        copy.restore(json.loads(json.dumps(env.snapshot())))
        return [await copy.step(text) for text in texts[half:]]

    assert asyncio.run(resumed()) == [turn.step for turn in episode.turns[len(texts) // 2 :]]


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.adapters.bfcl.package.importlib.util.find_spec", lambda name: None)
    entries.cache_clear()
    with pytest.raises(ConfigError, match=r"needs the package bfcl-eval; install it with: pip install --no-deps bfcl-eval=="):
        bfcl_source(EnvSection())


@needs_package
def test_a_cache_that_would_save_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.tool_cache: family 'bfcl' runs its tools in memory; leave mode 'off'"):
        bfcl_source(EnvSection(tool_cache=ToolCacheSection(mode="record_replay")))


@needs_package
def test_ids_lead_back_to_tasks_and_a_scenario_is_held_out_as_a_whole(source: SuiteSource[Entry]) -> None:
    splits = [[task.split for task in source.all_tasks(level)] for level in CATEGORIES]
    assert splits[0] == splits[1] == splits[2] == splits[3]
    assert 30 < splits[0].count("val") < 70
    rng = random.Random(0)
    for split in ("train", "val"):
        task = source.sample(rng, split=split, level=2)
        assert task.split == split
        assert source.get(task.task_id) == task
    for wrong in ("bfcl/train/1", "bfcl/train/1/999", "bfcl/train/9/1", "other/train/1/1", "bfcl/train/1/x"):
        with pytest.raises(ValueError, match=wrong):
            source.get(wrong)
