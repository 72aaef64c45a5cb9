"""The conformance suite passes the project's families, and names what is wrong with a faulty one."""

from __future__ import annotations

import itertools
import time

import pytest

from cacherl.config import EnvSection
from envs.base import PlannedCall, Solution, SolutionStep, ToolSpec
from envs.check import CHECKS, check_source
from envs.registry import FAMILIES, load_source
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
        return 0.0

    def state(self):
        return {} if self._fault == "snapshot" else {"pressed": sorted(self._pressed)}

    def restore(self, state):
        self._pressed = set(state.get("pressed", ()))


class LampFamily:
    name = "lamps"
    tools = (_SWITCH,)

    def __init__(self, fault: str = "") -> None:
        self._fault = fault

    def levels(self, split):
        return (1,) if split in (("train",) if self._fault == "splits" else ("train", "val")) else ()

    def build(self, *, split, level, seed):
        wanted = [_SWITCHES[seed % 50], _SWITCHES[(seed + 7) % 50], _SWITCHES[(seed + 19) % 50]]
        pressed = wanted[:2] if self._fault == "oracle" else wanted
        steps = tuple(SolutionStep(call=PlannedCall(name="press", arguments={"id": switch})) for switch in pressed)
        return Scenario(
            prompt=f"Press {' and '.join(wanted)}",
            params={},
            solution=Solution(steps=steps, answer="done", guess="nothing"),
            start=lambda: Lamps(set(wanted), self._fault),
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
    assert [finding.check for finding in findings] == [check.name for check in CHECKS]


async def test_a_sound_family_conforms():
    assert [finding for finding in await check_source(source_with(""), tasks=20) if finding.problem] == []


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("splits", "no levels in split val"),
        ("oracle", "4 of 4 tasks unsolved, first lamps/train/1/"),
        ("random", "random calls succeed in"),
        ("bare answer", "4 of 4 tasks reward the answer without any call"),
        ("determinism", "with rollout_seed 5 differ"),
        ("siblings", "differ when they run interleaved"),
        ("snapshot", "goes on otherwise after restore"),
        ("vocabulary", "'2', not in vocabulary()"),
        ("reset cost", "a reset takes 6"),
    ],
)
async def test_each_fault_is_named(fault, problem):
    Lamps.shared.clear()
    findings = {finding.check: finding for finding in await check_source(source_with(fault), tasks=2)}
    assert findings[fault].problem is not None
    assert problem in findings[fault].problem
    assert findings[fault].meaning


async def test_an_exception_is_a_finding():
    class Raising(LampFamily):
        def texts(self):
            raise RuntimeError("out of words")

    findings = {f.check: f.problem for f in await check_source(SimulatedSource(Raising(), EnvSection()), tasks=2)}
    assert findings["vocabulary"] == "raised RuntimeError: out of words"
    assert findings["determinism"] is None
