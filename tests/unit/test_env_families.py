"""What holds for every family, level and split: the oracle solves, hacks do not, seeds decide, siblings are strangers."""

from __future__ import annotations

import asyncio
import json
import random
import re
from functools import cache

import pytest

from cacherl.environment_settings import EnvSection
from cacherl.trajectory import Message
from envs.agents import Agent, OracleAgent, RandomAgent, ScriptedAgent, TeacherAgent
from envs.base import PlannedCall, Task, TaskSource
from envs.episode import Episode, play
from envs.parser import FORMATS
from envs.registry import FAMILIES, load_source
from envs.trip.market import build_market
from envs.vocabulary import split_words

SPLITS = ("train", "val", "comp", "deep")
#: Tasks of each family, level and split.
FEW, MANY = 40, 500
COUNTS = [FEW, pytest.param(MANY, marks=pytest.mark.slow)]
#: Families whose calls run in the sandbox, some hundred times as slow: so many tasks of theirs are few.
SANDBOXED = {"code": 4}


def noisy(family: str) -> TaskSource:
    levels = load_source(EnvSection(name=family, levels=(1,))).levels("train")
    return load_source(EnvSection(name=family, levels=levels, transient_failure_rate=0.1))


SOURCES = {family: noisy(family) for family in FAMILIES}
CASES = [(family, split, level) for family, source in SOURCES.items() for split in SPLITS for level in source.levels(split)]


def tasks_of(source: TaskSource, split: str, level: int, count: int) -> list[Task]:
    rng = random.Random(f"{split} {level}")
    if count < MANY:
        count = min(count, SANDBOXED.get(source.family, count))
    return [source.sample(rng, split=split, level=level) for _ in range(count)]


async def played(source: TaskSource, task: Task, agent: Agent, **options: int) -> Episode:
    env = source.make_env()
    episode = await play(env, task, agent, **options)
    await env.close()
    return episode


async def outcomes(source: TaskSource, tasks: list[Task], agent_of) -> list[float]:
    env = source.make_env()
    found = [(await play(env, task, agent_of(task), rollout_seed=n, max_turns=40)).outcome for n, task in enumerate(tasks)]
    await env.close()
    return found


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("family", "split", "level"), CASES)
async def test_the_oracle_always_succeeds(family, split, level, count):
    source = SOURCES[family]
    oracle = OracleAgent(source)
    tasks = tasks_of(source, split, level, count)
    assert await outcomes(source, tasks, lambda _: oracle) == [1.0] * len(tasks)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("family", "split", "level"), CASES)
async def test_a_random_agent_hardly_ever_succeeds(family, split, level, count):
    source = SOURCES[family]
    agent = RandomAgent(source, seed=1)
    tasks = tasks_of(source, split, level, count)
    assert sum(await outcomes(source, tasks, lambda _: agent)) / len(tasks) < 0.05


def answer_at_once(source: TaskSource, task: Task) -> list[str]:
    return [f"[ANSWER] {source.solution(task).answer}"]


def answer_the_start(source: TaskSource, task: Task) -> list[str]:
    return [*calls_of(source, task), f"[ANSWER] {source.solution(task).guess}"]


def echo(source: TaskSource, task: Task) -> list[str]:
    return [task.messages[-1].content, f"[ANSWER] {task.messages[-1].content}"]


def dump_everything(source: TaskSource, task: Task) -> list[str]:
    return [*calls_of(source, task), f"[ANSWER] {all_words(source.family)}"]


def overbook(source: TaskSource, task: Task) -> list[str]:
    """One booking more than the best ones."""
    market = build_market(split=task.split, level=task.level, seed=task.seed)
    more = [offer for offer, facts in market.offers.items() if offer not in market.best.values() and not facts.sold_out]
    cheapest = min(more, key=lambda offer: market.offers[offer].price)
    book = source.format.render([PlannedCall(name="book", arguments={"id": cheapest})])
    return [book, *calls_of(source, task), f"[ANSWER] {source.solution(task).answer}"]


@cache
def all_words(family: str) -> str:
    return " ".join(sorted(word for word in SOURCES[family].vocabulary() if re.fullmatch(r"\w+", word)))


def repeat_a_call(source: TaskSource, task: Task) -> list[str]:
    return [calls_of(source, task)[0]]


def several_answers(source: TaskSource, task: Task) -> list[str]:
    solution = source.solution(task)
    return [*calls_of(source, task), f"[ANSWER] {solution.answer} [ANSWER] {solution.guess}"]


def stop_halfway(source: TaskSource, task: Task) -> list[str]:
    calls = calls_of(source, task)
    return [*calls[: len(calls) // 2], f"[ANSWER] {source.solution(task).answer}"]


def calls_of(source: TaskSource, task: Task) -> list[str]:
    return [source.format.render([step.call]) for step in source.solution(task).steps]


HACKS = [answer_at_once, answer_the_start, echo, dump_everything, repeat_a_call, several_answers, stop_halfway]
#: Those that only one family knows.
OWN_HACKS = {"trip": [overbook]}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("family", "split", "level"), CASES)
async def test_hacks_never_succeed(family, split, level, count):
    source = load_source(EnvSection(name=family, levels=(1,), transient_failure_rate=0.0))
    env = source.make_env()
    hacks = [*HACKS, *OWN_HACKS.get(family, ())]
    succeeded = dict.fromkeys((hack.__name__ for hack in hacks), 0.0)
    for task in tasks_of(source, split, level, count):
        for hack in hacks:
            agent = ScriptedAgent(hack(source, task))
            succeeded[hack.__name__] += (await play(env, task, agent, rollout_seed=0, max_turns=20)).outcome
    await env.close()
    assert succeeded == dict.fromkeys(succeeded, 0.0)


@pytest.mark.parametrize(("family", "split", "level"), CASES)
async def test_two_runs_with_one_seed_are_identical(family, split, level):
    first, second = noisy(family), noisy(family)
    for number, task in enumerate(tasks_of(first, split, level, 20)):
        runs = [
            await played(source, source.get(task.task_id), RandomAgent(source, seed=3), rollout_seed=number, max_turns=20)
            for source in (first, second)
        ]
        assert runs[0] == runs[1]


@pytest.mark.parametrize(("family", "split", "level"), CASES)
async def test_interleaved_siblings_do_not_influence_each_other(family, split, level):
    source = load_source(EnvSection(name=family, levels=(1,), transient_failure_rate=0.3, latency_s=0.0))

    async def episode(task, seed, pause):
        env = source.make_env()
        agent = RandomAgent(source, seed=seed) if seed % 2 else OracleAgent(source)
        await env.reset(task, rollout_seed=seed)
        history, steps = [], []
        for _ in range(30):
            await pause()
            text = agent.act(task, history)
            step = await env.step(text)
            steps.append(step)
            history += [Message(role="assistant", content=text), *step.messages]
            if step.terminated:
                break
        await env.close()
        return steps

    async def switch():
        await asyncio.sleep(0)

    async def stay():
        return

    for task in tasks_of(source, split, level, 5)[: 1 if family in SANDBOXED else None]:
        together = await asyncio.gather(*(episode(task, seed, switch) for seed in range(8)))
        alone = [await episode(task, seed, stay) for seed in range(8)]
        assert together == alone


@pytest.mark.parametrize(("family", "split", "level"), CASES)
async def test_a_restored_episode_goes_on_as_the_original_did(family, split, level):
    source = SOURCES[family]
    for number, task in enumerate(tasks_of(source, split, level, 20)):
        texts = calls_of(source, task)
        env, copy = source.make_env(), source.make_env()
        await env.reset(task, rollout_seed=number)
        await copy.reset(task, rollout_seed=number)
        for text in texts[: len(texts) // 2 + 1]:
            await env.step(text)
        copy.restore(json.loads(json.dumps(env.snapshot())))
        rest = [*texts, f"[ANSWER] {source.solution(task).answer}"]
        assert [await env.step(text) for text in rest] == [await copy.step(text) for text in rest]
        assert env.snapshot() == copy.snapshot()
        await env.close()
        await copy.close()


@pytest.mark.parametrize("action_format", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_vocabulary_covers_whatever_can_happen(family, action_format):
    source = load_source(EnvSection(name=family, levels=(1,), action_format=action_format))
    known = {*source.vocabulary(), *source.tags()}
    rng = random.Random(2)
    for number in range(60 if family in SANDBOXED else 600):
        split = rng.choice([split for split in SPLITS if source.levels(split)])
        task = source.sample(rng, split=split, level=rng.choice(source.levels(split)))
        agent = (RandomAgent(source, seed=number), OracleAgent(source), TeacherAgent(source, sloppiness=0.5, seed=number))[
            number % 3
        ]
        if family in SANDBOXED and isinstance(agent, RandomAgent):
            continue  # what arbitrary code prints, and the errors that quote it, are open
        episode = await played(source, task, agent, rollout_seed=number, max_turns=40)
        said = () if number % 3 == 0 else tuple(turn.text for turn in episode.turns)
        shown = [message.content for message in episode.messages if message.role != "assistant"]
        for text in (*said, *shown):
            assert set(split_words(text, source.tags())) <= known
