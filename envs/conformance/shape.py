"""Checks of what an environment consists of: splits, ids, tools, words, cost."""

from __future__ import annotations

import time
from collections.abc import Iterator

from jsonschema import Draft202012Validator

from envs.agents import OracleAgent
from envs.base import TRAIN, VAL, PlannedCall, Task
from envs.conformance.subject import MAX_TURNS, Subject
from envs.episode import play
from envs.vocabulary import split_words

#: Seconds that a reset may take, in the mean.
RESET_SECONDS = 0.05


async def splits(subject: Subject) -> str | None:
    """'train' and 'val' exist, and have the same levels."""
    train, val = (subject.source.levels(split) for split in (TRAIN, VAL))
    missing = [split for split, levels in ((TRAIN, train), (VAL, val)) if not levels]
    if missing:
        return f"no levels in split {' and '.join(missing)}"
    unseen = [level for level in train if level not in val]
    return f"levels {unseen} of split 'train' do not exist in 'val'" if unseen else None


async def identity(subject: Subject) -> str | None:
    """An id leads back to its task, and tells it from all others."""
    for task in subject.all_tasks:
        if subject.source.get(task.task_id) != task:
            return f"get({task.task_id!r}) is another task"
    return None


async def tools(subject: Subject) -> str | None:
    """Source and environment have the same tools, each with a description."""
    specs = subject.source.tools()
    async with subject.env(subject.all_tasks[0], rollout_seed=0) as env:
        if specs != env.tools():
            return "source.tools() differ from the environment's"
    nameless = [spec.name for spec in specs if not spec.description]
    return f"no description of {', '.join(nameless)}" if nameless else None


async def schemas(subject: Subject) -> str | None:
    """Calls of solutions obey the tools' schemas; calls that do not are answered with an error, and end nothing."""
    schemas = {spec.name: spec.parameters for spec in subject.source.tools()}
    for task in subject.all_tasks:
        calls = subject.source.solution(task).calls
        for call in calls:
            if not schemas:  # tools that differ by task
                break
            if call.name not in schemas or not Draft202012Validator(schemas[call.name]).is_valid(dict(call.arguments)):
                return f"the solution of {task.task_id} calls {call.name}, which its tools do not allow"
        if problem := await _refuses(subject, task, tuple(_broken(calls))):
            return problem
    return None


def _broken(calls: tuple[PlannedCall, ...]) -> Iterator[PlannedCall]:
    yield PlannedCall(name="no_such_tool", arguments={})
    for call in calls[:2]:
        yield PlannedCall(name=call.name, arguments={**call.arguments, "unexpected": 1})
        if call.arguments:
            yield PlannedCall(name=call.name, arguments={name: {} for name in call.arguments})


async def _refuses(subject: Subject, task: Task, calls: tuple[PlannedCall, ...]) -> str | None:
    async with subject.env(task, rollout_seed=0) as env:
        for call in calls:
            step = await env.step(subject.source.format.render([call]))
            if step.terminated or any(made.ok for made in step.calls):
                return f"{task.task_id}: the call {call.name} {dict(call.arguments)} is not refused"
    return None


async def vocabulary(subject: Subject) -> str | None:
    """Whatever an oracle's episode says is made of the words that the source lists."""
    source = subject.source
    known = {*source.vocabulary(), *source.tags()}
    oracle = OracleAgent(source)
    env = source.make_env()
    for index, task in enumerate(subject.all_tasks):
        episode = await play(env, task, oracle, rollout_seed=index, max_turns=MAX_TURNS)
        for message in episode.messages:
            if unknown := set(split_words(message.content, source.tags())) - known:
                return f"{task.task_id} uses {', '.join(map(repr, sorted(unknown)))}, not in vocabulary()"
    await env.close()
    return None


async def reset_cost(subject: Subject) -> str | None:
    """A reset is cheap."""
    env = subject.source.make_env()
    begin = time.perf_counter()
    for task in subject.all_tasks:
        await env.reset(task, rollout_seed=0)
    seconds = (time.perf_counter() - begin) / len(subject.all_tasks)
    await env.close()
    return f"a reset takes {seconds * 1000:.1f} ms" if seconds > RESET_SECONDS else None
