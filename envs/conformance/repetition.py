"""Checks that an episode depends on seeds and calls alone: not on the run, the process, siblings, or an interruption."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from cacherl.trajectory import Message
from envs.agents import Agent, OracleAgent, RandomAgent
from envs.answer import render_answer
from envs.base import Task
from envs.conformance.fingerprint import fingerprint
from envs.conformance.subject import Subject

#: Seconds that another process may take to load the environment and to play.
_CHILD_S = 120.0
#: Turns at random before a snapshot is taken.
_ASTRAY = 4


async def determinism(subject: Subject) -> str | None:
    """The same calls under the same seeds have the same results."""
    agents: list[Agent] = [RandomAgent(subject.source, seed=1), OracleAgent(subject.source)]
    for task in subject.all_tasks:
        for agent in agents:
            first, second = [await subject.steps(task, agent, rollout_seed=5) for _ in range(2)]
            if first != second:
                return f"two episodes of {task.task_id} with rollout_seed 5 differ"
    return None


async def processes(subject: Subject) -> str | None:
    """Another process, with another order of sets and dictionaries of strings, plays the same episodes."""
    assert subject.section is not None
    task_ids = [task.task_id for tasks in subject.tasks.values() for task in tasks[:3]]
    here = await fingerprint(subject.source, task_ids)
    there = await _elsewhere({"section": subject.section.model_dump(mode="json"), "task_ids": task_ids})
    differing = [task_id for task_id in task_ids if here[task_id] != there.get(task_id)]
    return (
        f"{len(differing)} of {len(task_ids)} episodes differ in another process, first {differing[0]}" if differing else None
    )


async def _elsewhere(request: dict[str, Any]) -> dict[str, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "envs.conformance.fingerprint",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "4711"},
    )
    try:
        async with asyncio.timeout(_CHILD_S):
            output, errors = await child.communicate(json.dumps(request).encode())
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise RuntimeError(f"another process cannot play it: {errors.decode(errors='replace').strip().splitlines()[-1:]}")
    return dict(json.loads(output.splitlines()[-1]))


async def siblings(subject: Subject) -> str | None:
    """Episodes that run interleaved are those that run alone."""
    source = subject.source
    agents: list[Agent] = [OracleAgent(source), *(RandomAgent(source, seed=seed) for seed in range(3))]
    for task in subject.all_tasks:
        alone = [await subject.steps(task, agent, rollout_seed=seed) for seed, agent in enumerate(agents)]
        together = await asyncio.gather(
            *(subject.steps(task, agent, rollout_seed=seed, pause=True) for seed, agent in enumerate(agents))
        )
        if alone != together:
            return f"episodes of {task.task_id} differ when they run interleaved"
    return None


async def snapshot(subject: Subject) -> str | None:
    """A snapshot is JSON and nobody changes it, and an episode restored from it goes on as the original."""
    for task in subject.all_tasks:
        before, after = _script(subject, task)
        async with subject.env(task, rollout_seed=6) as original, subject.env(task, rollout_seed=6) as copy:
            for text in before:
                await original.step(text)
            taken = original.snapshot()
            written = json.dumps(taken)
            expected = [await original.step(text) for text in after]
            if json.dumps(taken) != written:
                return f"a snapshot of {task.task_id} changes while the episode goes on: state() must give copies"
            read = json.loads(written)
            copy.restore(read)
            if [await copy.step(text) for text in after] != expected:
                return f"an episode of {task.task_id} goes on otherwise after restore"
            if json.dumps(read) != written:
                return f"a snapshot of {task.task_id} changes with the episode restored from it: restore() must copy it"
    return None


def _script(subject: Subject, task: Task) -> tuple[list[str], list[str]]:
    """Turns before and after a snapshot: the solution's, and calls at random, for state that only mistakes change."""
    source = subject.source
    solution = source.solution(task)
    calls = [source.format.render([call]) for call in solution.calls]
    half = (len(calls) + 1) // 2
    agent = RandomAgent(source, seed=7)
    said = [agent.act(task, [Message(role="assistant", content="")] * turn) for turn in range(2 * _ASTRAY)]
    astray = [text for text in said if source.format.parse(text, finish_reason="stop")]
    before = [*calls[:half], *astray[:_ASTRAY]]
    return before, [*astray, *calls[half:], *calls[:1], render_answer(solution.answer)]
