"""`check_source`: does an environment keep the promises that training relies on? For one's own as for the project's.

Each check plays real episodes and reports what it saw. None of them needs a model.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cacherl.trajectory import Message
from envs.agents import Agent, OracleAgent, RandomAgent, ScriptedAgent
from envs.answer import render_answer
from envs.base import TRAIN, VAL, EnvStep, Task, TaskSource
from envs.episode import play
from envs.vocabulary import split_words

#: Success that an agent of random calls may reach.
RANDOM_SUCCESS = 0.05
#: Seconds that a reset may take, in the mean.
RESET_SECONDS = 0.05
_MAX_TURNS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check. `problem` says what was seen, None: nothing wrong; `meaning` what a failure of it means."""

    check: str
    problem: str | None
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise. `run` gives the problem that it found in playing `tasks`, or None."""

    name: str
    meaning: str
    run: Callable[[TaskSource, Sequence[Task]], Awaitable[str | None]]


async def check_source(source: TaskSource, *, tasks: int = 50, seed: int = 0) -> tuple[Finding, ...]:
    """Run every check on `tasks` tasks of each level of the splits 'train' and 'val'. An exception is a finding, too."""
    rng = random.Random(f"check {seed}")
    drawn = [
        source.sample(rng, split=split, level=level)
        for split in (TRAIN, VAL)
        for level in source.levels(split)
        for _ in range(tasks)
    ]
    findings = []
    for check in CHECKS:
        try:
            problem = await check.run(source, drawn)
        except Exception as error:
            problem = f"raised {type(error).__name__}: {error}"
        findings.append(Finding(check=check.name, problem=problem, meaning=check.meaning))
    return tuple(findings)


async def _outcomes(source: TaskSource, tasks: Sequence[Task], agent_of: Callable[[Task], Agent]) -> list[float]:
    env = source.make_env()
    played = [
        await play(env, task, agent_of(task), rollout_seed=index, max_turns=_MAX_TURNS) for index, task in enumerate(tasks)
    ]
    await env.close()
    return [episode.outcome for episode in played]


async def _steps(source: TaskSource, task: Task, agent: Agent, *, rollout_seed: int, pause: bool = False) -> list[EnvStep]:
    """One episode's steps. With `pause`, others may run before each of its turns."""
    env = source.make_env()
    await env.reset(task, rollout_seed=rollout_seed)
    history: list[Message] = []
    steps: list[EnvStep] = []
    while len(steps) < _MAX_TURNS and not (steps and steps[-1].terminated):
        if pause:
            await asyncio.sleep(0)
        text = agent.act(task, history)
        steps.append(await env.step(text))
        history += [Message(role="assistant", content=text), *steps[-1].messages]
    await env.close()
    return steps


async def _splits(source: TaskSource, _: Sequence[Task]) -> str | None:
    missing = [split for split in (TRAIN, VAL) if not source.levels(split)]
    return f"no levels in split {' and '.join(missing)}" if missing else None


async def _identity(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    for task in tasks:
        if source.get(task.task_id) != task:
            return f"get({task.task_id!r}) is another task"
    return None


async def _tools(source: TaskSource, _: Sequence[Task]) -> str | None:
    if source.tools() != source.make_env().tools():
        return "source.tools() differ from the environment's"
    nameless = [spec.name for spec in source.tools() if not spec.description]
    return f"no description of {', '.join(nameless)}" if nameless else None


async def _oracle(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    oracle = OracleAgent(source)
    outcomes = await _outcomes(source, tasks, lambda _: oracle)
    failed = [task.task_id for task, outcome in zip(tasks, outcomes, strict=True) if outcome != 1.0]
    return f"{len(failed)} of {len(tasks)} tasks unsolved, first {failed[0]}" if failed else None


async def _random(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    agent = RandomAgent(source, seed=0)
    success = sum(await _outcomes(source, tasks, lambda _: agent)) / len(tasks)
    return f"random calls succeed in {success:.0%} of episodes" if success >= RANDOM_SUCCESS else None


async def _bare_answer(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    outcomes = await _outcomes(source, tasks, lambda task: ScriptedAgent([render_answer(source.solution(task).answer)]))
    paid = sum(outcome > 0 for outcome in outcomes)
    return f"{paid} of {len(tasks)} tasks reward the answer without any call" if paid else None


async def _determinism(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    agent = RandomAgent(source, seed=1)
    for task in tasks:
        first, second = [await _steps(source, task, agent, rollout_seed=5) for _ in range(2)]
        if first != second:
            return f"two episodes of {task.task_id} with rollout_seed 5 differ"
    return None


async def _siblings(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    agents: list[Agent] = [OracleAgent(source), *(RandomAgent(source, seed=seed) for seed in range(3))]
    for task in tasks:
        alone = [await _steps(source, task, agent, rollout_seed=seed) for seed, agent in enumerate(agents)]
        together = await asyncio.gather(
            *(_steps(source, task, agent, rollout_seed=seed, pause=True) for seed, agent in enumerate(agents))
        )
        if alone != together:
            return f"episodes of {task.task_id} differ when they run interleaved"
    return None


async def _snapshot(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    for task in tasks:
        calls = [source.format.render([call]) for call in source.solution(task).calls]
        half = (len(calls) + 1) // 2
        original, copy = source.make_env(), source.make_env()
        for env in (original, copy):
            await env.reset(task, rollout_seed=6)
        for text in calls[:half]:
            await original.step(text)
        copy.restore(json.loads(json.dumps(original.snapshot())))
        rest = [*calls[half:], calls[0], render_answer(source.solution(task).answer)]
        same = [await original.step(text) for text in rest] == [await copy.step(text) for text in rest]
        await original.close()
        await copy.close()
        if not same:
            return f"an episode of {task.task_id} goes on otherwise after restore"
    return None


async def _vocabulary(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    known = {*source.vocabulary(), *source.tags()}
    oracle = OracleAgent(source)
    env = source.make_env()
    for index, task in enumerate(tasks):
        episode = await play(env, task, oracle, rollout_seed=index, max_turns=_MAX_TURNS)
        for message in episode.messages:
            if unknown := set(split_words(message.content, source.tags())) - known:
                await env.close()
                return f"{task.task_id} uses {', '.join(map(repr, sorted(unknown)))}, not in vocabulary()"
    await env.close()
    return None


async def _reset_cost(source: TaskSource, tasks: Sequence[Task]) -> str | None:
    env = source.make_env()
    begin = time.perf_counter()
    for task in tasks:
        await env.reset(task, rollout_seed=0)
    seconds = (time.perf_counter() - begin) / len(tasks)
    await env.close()
    return f"a reset takes {seconds * 1000:.1f} ms" if seconds > RESET_SECONDS else None


CHECKS = (
    Check(name="splits", meaning="there is nothing to train on, or nothing unseen to evaluate on", run=_splits),
    Check(name="identity", meaning="stored trajectories cannot be traced back to their task", run=_identity),
    Check(name="tools", meaning="the model is told of other tools than it has", run=_tools),
    Check(name="oracle", meaning="some tasks cannot be solved, or the verdict is wrong", run=_oracle),
    Check(name="random", meaning="success says little: it can be had without skill", run=_random),
    Check(name="bare answer", meaning="the answer counts without evidence, so guessing is learned", run=_bare_answer),
    Check(name="determinism", meaning="a seed does not fix the episode, so nothing can be reproduced", run=_determinism),
    Check(name="siblings", meaning="episodes share state, so the baseline of a group means nothing", run=_siblings),
    Check(name="snapshot", meaning="an episode cannot be forked or resumed", run=_snapshot),
    Check(name="vocabulary", meaning="the tiny model's tokenizer does not know all the words", run=_vocabulary),
    Check(name="reset cost", meaning="actors spend their time on resets", run=_reset_cost),
)
