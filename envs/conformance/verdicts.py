"""Checks of what is rewarded: the solution always, chance hardly ever, an answer without work or a trick never."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cacherl.errors import CacheRLError
from envs.agents import OracleAgent, RandomAgent, ScriptedAgent
from envs.answer import render_answer
from envs.base import PlannedCall, Solution, ToolEnv
from envs.conformance.subject import Subject

#: Success that an agent of random calls may reach.
RANDOM_SUCCESS = 0.05

#: Names under which a careless dispatch of calls to attributes would reach the verdict or the state behind it.
_INNARDS = (
    *("verdict", "answer", "state", "restore", "snapshot", "reset", "close", "step", "call", "tools"),
    *("__init__", "__class__", "__dict__", "__setattr__", "_outcome", "_simulator", "_simulator.answer", "_simulator.verdict"),
)


async def oracle(subject: Subject) -> str | None:
    """Every solution is worth 1.0."""
    agent = OracleAgent(subject.source)
    outcomes = await subject.outcomes(subject.all_tasks, lambda _: agent)
    failed = [task.task_id for task, outcome in zip(subject.all_tasks, outcomes, strict=True) if outcome != 1.0]
    return f"{len(failed)} of {len(outcomes)} tasks unsolved, first {failed[0]}" if failed else None


async def chance(subject: Subject) -> str | None:
    """Random calls succeed in less than `RANDOM_SUCCESS` of the episodes of every level; two standard errors are granted."""
    agent = RandomAgent(subject.source, seed=0)
    for (split, level), tasks in subject.tasks.items():
        solved = sum(await subject.outcomes(tasks, lambda _: agent))
        expected = RANDOM_SUCCESS * len(tasks)
        if solved > expected + 2 * math.sqrt(expected * (1 - RANDOM_SUCCESS)):
            return f"random calls succeed in {solved / len(tasks):.0%} of the episodes of split {split!r}, level {level}"
    return None


async def bare_answer(subject: Subject) -> str | None:
    """The right answer without any call is worth nothing."""
    outcomes = await subject.outcomes(
        subject.all_tasks, lambda task: ScriptedAgent([render_answer(subject.source.solution(task).answer)])
    )
    paid = sum(outcome > 0 for outcome in outcomes)
    return f"{paid} of {len(outcomes)} tasks reward the answer without any call" if paid else None


async def out_of_reach(subject: Subject) -> str | None:
    """No call moves the verdict by another way than solving the task, and a verdict once given stays."""
    for task in subject.all_tasks:
        solution = subject.source.solution(task)
        async with subject.env(task, rollout_seed=0) as env:
            problem = await _probe(subject, env, solution) or await _reopen(subject, env, solution)
        if problem:
            return f"{task.task_id}: {problem}"
    return None


async def _probe(subject: Subject, env: ToolEnv, solution: Solution) -> str | None:
    if env.verdict() > 0:
        return f"the verdict is {env.verdict():g} before any call"
    for call in _tricks(subject, solution):
        step = await env.step(subject.source.format.render([call]))
        if step.terminated or any(made.ok for made in step.calls):
            return f"the call {call.name} {dict(call.arguments)} works, though there is no such tool"
        if env.verdict() > 0:
            return f"the call {call.name} {dict(call.arguments)} makes the verdict {env.verdict():g}"
    return None


def _tricks(subject: Subject, solution: Solution) -> Iterator[PlannedCall]:
    known = {spec.name for spec in subject.source.tools()}
    for name in _INNARDS:
        if name not in known:
            yield PlannedCall(name=name, arguments={})
            yield PlannedCall(name=name, arguments={"value": solution.answer})


async def _reopen(subject: Subject, env: ToolEnv, solution: Solution) -> str | None:
    if outcome := (await env.step(render_answer(solution.guess))).outcome:
        return f"the guess {solution.guess!r} is worth {outcome:g} without any call"
    calls = [subject.source.format.render([call]) for call in solution.calls]
    for text in (*calls, render_answer(solution.answer)):
        try:
            await env.step(text)
        except CacheRLError:  # an episode that has ended takes no more turns: as it should be
            break
    return "solving it after a wrong answer counts" if env.verdict() > 0 else None
