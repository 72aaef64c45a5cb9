"""The conformance suite passes the project's families, and names what is wrong with a faulty one."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from cacherl.environment_settings import EnvSection
from cacherl.trajectory import Message, ToolCall
from envs.base import EnvStep, PlannedCall, Solution, SolutionStep, ToolSpec
from envs.check import CHECKS, check_source
from envs.registry import FAMILIES, build_source, load_source
from envs.simulator import Scenario, ToolResult
from envs.source import SimulatedSource

_SWITCH = ToolSpec(
    name="press",
    description="Press a switch.",
    parameters={
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
        "additionalProperties": False,
    },
)
_SWITCHES = [f"s{number}" for number in range(50)]
_COUNTER = itertools.count()


class Lamps:
    """Success: exactly the asked switches are pressed. `shared` is state that other episodes see."""

    shared: set[str] = set()  # noqa: RUF012

    def __init__(self, wanted: set[str], fault: str) -> None:
        if fault == "reset cost":
            time.sleep(0.06)
        self._wanted = wanted
        self._fault = fault
        self._pressed = self.shared if fault == "siblings" else set()

    def call(self, name, arguments):
        self._pressed ^= {arguments["id"]}
        return ToolResult(content={"pressed": str(next(_COUNTER) % 50 if self._fault == "determinism" else len(self._pressed))})

    def answer(self, value):
        if self._fault == "bare answer":
            return float(value == "done")
        return float(self._fault == "random" or (value == "done" and self._pressed == self._wanted))

    def verdict(self):
        return float(self._fault == "verdict")

    def state(self):
        return {} if self._fault == "snapshot" else {"pressed": sorted(self._pressed)}

    def restore(self, state):
        self._pressed = set(state.get("pressed", ()))


class Ledger(Lamps):
    """As `Lamps`, with a list of what was pressed, wrong or right, which some forget, and some give away as it is."""

    def __init__(self, wanted: set[str], fault: str) -> None:
        super().__init__(wanted, fault)
        self._history: list[str] = []

    def call(self, name, arguments):
        result = super().call(name, arguments)
        if self._fault != "forgotten" or arguments["id"] not in self._wanted:
            self._history.append(arguments["id"])
        return ToolResult(content={"pressed": f"{result.content['pressed']} of {len(self._history)}"})

    def state(self):
        history = self._history if self._fault == "state aliases" else list(self._history)
        return {"pressed": sorted(self._pressed), "history": [] if self._fault == "forgotten" else history}

    def restore(self, state):
        super().restore(state)
        self._history = state["history"] if self._fault == "restore aliases" else list(state["history"])


class LampFamily:
    name = "lamps"
    world = Lamps
    tools = (_SWITCH,)

    def __init__(self, fault: str = "") -> None:
        self._fault = fault

    def levels(self, split):
        return (1,) if split in (("train",) if self._fault == "splits" else ("train", "val")) else ()

    def build(self, *, split, level, seed):
        wanted = [_SWITCHES[seed % 50], _SWITCHES[(seed + 7) % 50], _SWITCHES[(seed + 19) % 50]]
        pressed = wanted[:2] if self._fault == "oracle" else wanted
        extra = {"times": 1} if self._fault == "schemas" else {}
        steps = tuple(SolutionStep(call=PlannedCall(name="press", arguments={"id": switch, **extra})) for switch in pressed)
        return Scenario(
            prompt=f"Press {' and '.join(wanted)}",
            params={},
            solution=Solution(steps=steps, answer="done", guess="nothing"),
            start=lambda: self.world(set(wanted), self._fault),
        )

    def texts(self):
        yield from _SWITCHES
        yield '{"pressed":"1"}'
        if self._fault != "vocabulary":
            yield from map(str, range(50))


def source_with(fault: str) -> SimulatedSource:
    return SimulatedSource(LampFamily(fault), EnvSection(transient_failure_rate=0.1))


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_projects_families_conform(family):
    findings = await check_source(load_source(EnvSection(name=family, levels=(1,))), tasks=1 if family == "code" else 10)
    assert [finding for finding in findings if finding.problem] == []
    assert [finding.check for finding in findings] == [check.name for check in CHECKS if not check.reloads]


async def test_a_sound_family_conforms():
    assert [finding for finding in await check_source(source_with(""), tasks=20) if finding.problem] == []


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("splits", "no levels in split val"),
        ("oracle", "4 of 4 tasks unsolved, first lamps/train/1/"),
        ("random", "random calls succeed in"),
        ("bare answer", "4 of 4 tasks reward the answer without any call"),
        ("verdict", "the verdict is 1 before any call"),
        ("schemas", "calls press, which its tools do not allow"),
        ("determinism", "with rollout_seed 5 differ"),
        ("siblings", "differ when they run interleaved"),
        ("snapshot", "goes on otherwise after restore"),
        ("vocabulary", "'2', not in vocabulary()"),
        ("reset cost", "a reset takes "),
    ],
)
async def test_each_fault_is_named(fault, problem):
    Lamps.shared.clear()
    findings = {finding.check: finding for finding in await check_source(source_with(fault), tasks=2)}
    assert findings[fault].problem is not None
    assert problem in findings[fault].problem
    assert findings[fault].meaning
    assert findings[fault].remedy


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("none", None),
        ("forgotten", "goes on otherwise after restore"),
        ("state aliases", "changes while the episode goes on: state() must give copies"),
        ("restore aliases", "changes with the episode restored from it: restore() must copy it"),
    ],
)
async def test_a_snapshot_that_is_not_of_the_moment_is_found(fault, problem):
    class Family(LampFamily):
        world = Ledger

    source = SimulatedSource(Family(fault), EnvSection(transient_failure_rate=0.1))
    found = {finding.check: finding.problem for finding in await check_source(source, tasks=3)}["snapshot"]
    assert (found is None) if problem is None else (problem in found)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"call": lambda *_: "fine"}, "tool 'press' must give a ToolResult (envs/simulator.py), got str"),
        (
            {"call": lambda *_: ToolResult(content={"a": {1}})},
            "tool 'press' gave a result that JSON cannot carry: Object of type set",
        ),
        (
            {"call": lambda *_: ToolResult(content={"a": float("nan")})},
            "tool 'press' gave a result that JSON cannot carry: Out of",
        ),
        ({"state": lambda _: {"pressed": {1}}}, " must be plain JSON values: Object of type set"),
        ({"answer": lambda *_: float("nan")}, "EnvStep: outcome must lie in [0, 1], got nan"),
        ({"answer": lambda *_: 2.0}, "EnvStep: outcome must lie in [0, 1], got 2.0"),
        ({"verdict": lambda _: float("nan")}, "the verdict must lie in [0, 1], got nan"),
    ],
)
async def test_a_member_that_gives_the_wrong_thing_is_named(broken, problem):
    class Family(LampFamily):
        world = type("Broken", (Lamps,), broken)

    found = [finding.problem or "" for finding in await check_source(SimulatedSource(Family(), EnvSection()), tasks=1)]
    assert any(text.startswith("raised EnvironmentFault: ") and problem in text for text in found)


async def test_an_exception_is_a_finding():
    class Raising(LampFamily):
        def texts(self):
            raise RuntimeError("out of words")

    findings = {f.check: f.problem for f in await check_source(SimulatedSource(Raising(), EnvSection()), tasks=2)}
    assert findings["vocabulary"] == "raised RuntimeError: out of words"
    assert findings["determinism"] is None


class Loose:
    """An environment around a sound one, with a hole in its dispatch of calls."""

    def __init__(self, env, hole: str) -> None:
        self._env, self._hole, self._open, self._solved = env, hole, False, False

    def __getattr__(self, name):
        return getattr(self._env, name)

    async def reset(self, task, *, rollout_seed):
        self._open, self._solved = False, False
        await self._env.reset(task, rollout_seed=rollout_seed)

    async def step(self, text, *, finish_reason="stop"):
        if self._hole == "ends" and "unexpected" in text:
            return EnvStep(messages=(), calls=(), terminated=True, outcome=0.0, state_hash="")
        if self._hole == "lets in" and "unexpected" in text:
            return await self._env.step(text.replace(',"unexpected":1', ""))
        if self._hole == "getattr" and "_outcome" in text:
            self._open = True
        if self._hole == "reopens" and self._env.snapshot()["outcome"] is not None:
            self._solved = True
        if self._hole == "works" and "__init__" in text:
            call = ToolCall(name="__init__", arguments={}, ok=True)
            return EnvStep(
                messages=(Message(role="tool", content="{}"),), calls=(call,), terminated=False, outcome=None, state_hash=""
            )
        return await self._env.step(text, finish_reason=finish_reason)

    def verdict(self):
        return 1.0 if self._open or self._solved else self._env.verdict()


@pytest.mark.parametrize(
    ("hole", "check", "problem"),
    [
        ("ends", "schemas", "is not refused"),
        ("lets in", "schemas", "the call press {'id': 's"),
        ("getattr", "verdict", "the call _outcome {} makes the verdict 1"),
        ("works", "verdict", "the call __init__ {} works, though there is no such tool"),
        ("reopens", "verdict", "solving it after a wrong answer counts"),
    ],
)
async def test_holes_in_the_dispatch_of_calls_are_found(hole, check, problem):
    source = SimulatedSource(LampFamily(), EnvSection(transient_failure_rate=0.0))
    make_env = source.make_env
    source.make_env = lambda: Loose(make_env(), hole)
    findings = {finding.check: finding.problem for finding in await check_source(source, tasks=2)}
    assert {name for name, found in findings.items() if found} == {check}
    assert problem in findings[check]


async def test_an_id_that_leads_elsewhere_is_found():
    source = source_with("")
    source.get = lambda task_id: source.sample(random.Random(0), split="train", level=1)
    findings = {finding.check: finding.problem for finding in await check_source(source, tasks=2)}
    assert "is another task" in findings["identity"]


async def test_levels_that_cannot_be_evaluated_are_found():
    source = source_with("")
    source.levels = lambda split: (1, 2) if split == "train" else (1,)
    source.sample = lambda rng, *, split, level: source_with("").sample(rng, split=split, level=1)
    findings = {finding.check: finding.problem for finding in await check_source(source, tasks=2)}
    assert findings["splits"] == "levels [2] of split 'train' do not exist in 'val'"


async def test_an_environment_that_another_process_plays_otherwise_is_found(tmp_path, monkeypatch):
    (tmp_path / "hashed_env.py").write_text(
        "from dataclasses import replace\n"
        "from envs.research.family import ResearchFamily\n"
        "class Hashed(ResearchFamily):\n"
        "    def build(self, *, split, level, seed):\n"
        "        scenario = super().build(split=split, level=level, seed=seed)\n"
        "        return replace(scenario, prompt=scenario.prompt + ' '.join({'velor', 'kabax', 'mipil', 'kanus', 'yadis'}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    section = EnvSection(name="hashed_env:Hashed")
    findings = {f.check: f for f in await check_source(build_source(section), tasks=2, section=section)}
    assert "episodes differ in another process, first research/train/1/" in findings["processes"].problem
    assert findings["determinism"].problem is None


async def test_the_projects_families_are_the_same_in_another_process():
    seen = []
    section = EnvSection(name="data")
    findings = await check_source(build_source(section), tasks=1, section=section, on_finding=seen.append)
    assert [finding for finding in findings if finding.problem] == []
    assert tuple(seen) == findings
    assert [finding.check for finding in findings] == [check.name for check in CHECKS]


async def test_nothing_can_be_said_of_an_environment_without_tasks():
    source = source_with("")
    source.levels = lambda split: ()
    findings = {finding.check: finding.problem for finding in await check_source(source)}
    assert findings["splits"] == "no levels in split train and val"
    assert {problem for check, problem in findings.items() if check != "splits"} == {"there are no tasks"}


async def test_tasks_that_cannot_be_drawn_are_a_finding():
    class Unfinished(LampFamily):
        def build(self, *, split, level, seed):
            if split == "val":
                raise KeyError(split)
            return super().build(split=split, level=level, seed=seed)

    (finding,) = await check_source(SimulatedSource(Unfinished(), EnvSection()), tasks=2)
    assert (finding.check, finding.problem) == ("tasks", "drawing tasks raised KeyError: 'val'")
