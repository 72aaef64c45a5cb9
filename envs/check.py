"""`check_source`: does an environment keep the promises that training relies on? For one's own as for the project's.

Each check plays real episodes and reports what it saw. None of them needs a model.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cacherl.environment_settings import EnvSection
from envs.base import TRAIN, VAL, Task, TaskSource
from envs.conformance import repetition, shape, verdicts
from envs.conformance.subject import Subject

#: Seconds that one check may take.
DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check. `problem` says what was seen, None: nothing wrong; `meaning` what a failure of it means for
    training, and `remedy` what to do about it."""

    check: str
    problem: str | None
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise. `run` gives the problem that it found, or None; `reloads`: it loads the environment in another process."""

    name: str
    meaning: str
    remedy: str
    run: Callable[[Subject], Awaitable[str | None]]
    reloads: bool = False


async def check_source(
    source: TaskSource,
    *,
    tasks: int = 50,
    seed: int = 0,
    section: EnvSection | None = None,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> tuple[Finding, ...]:
    """Run every check on `tasks` tasks of each level of the splits 'train' and 'val'. An exception is a finding, too.

    Args:
        section: what `source` was loaded from; None leaves out the checks that load it once more.
        on_finding: called with each finding as soon as there is one.
    """
    try:
        subject = Subject(source=source, tasks=_draw(source, tasks, seed), section=section)
    except Exception as error:
        finding = Finding(
            check="tasks",
            problem=f"drawing tasks raised {type(error).__name__}: {error}",
            meaning="there is nothing to play, so nothing else could be checked",
            remedy="let sample(), and build() behind it, work for every level that levels() gives in 'train' and in 'val'",
        )
        on_finding(finding)
        return (finding,)
    findings = []
    for check in CHECKS:
        if section is None and check.reloads:
            continue
        finding = Finding(check=check.name, problem=await _problem(check, subject), meaning=check.meaning, remedy=check.remedy)
        findings.append(finding)
        on_finding(finding)
    return tuple(findings)


def _draw(source: TaskSource, count: int, seed: int) -> dict[tuple[str, int], tuple[Task, ...]]:
    rng = random.Random(f"check {seed}")
    return {
        (split, level): tuple(source.sample(rng, split=split, level=level) for _ in range(count))
        for split in (TRAIN, VAL)
        for level in source.levels(split)
    }


async def _problem(check: Check, subject: Subject) -> str | None:
    if not subject.tasks:
        return "there are no tasks" if check.run is not shape.splits else await shape.splits(subject)
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await check.run(subject)
    except TimeoutError:
        return f"took more than {DEADLINE_S:g} s"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


CHECKS = (
    Check(
        name="splits",
        run=shape.splits,
        meaning="there is nothing to train on, or nothing unseen to evaluate on",
        remedy="let levels('train') and levels('val') both give the same levels, and build different tasks for them",
    ),
    Check(
        name="identity",
        run=shape.identity,
        meaning="stored trajectories cannot be traced back to their task",
        remedy="make a task a function of its split, level and seed alone, and put all three into its id",
    ),
    Check(
        name="tools",
        run=shape.tools,
        meaning="the model is told of other tools than it has",
        remedy="give source and environment one and the same tuple of tools, each with a description",
    ),
    Check(
        name="schemas",
        run=shape.schemas,
        meaning="a call with wrong arguments reaches the tool, or ends the episode instead of telling the model what is wrong",
        remedy="state every argument in ToolSpec.parameters, and answer whatever breaks that schema with an error",
    ),
    Check(
        name="oracle",
        run=verdicts.oracle,
        meaning="some tasks cannot be solved, or the verdict is wrong",
        remedy="play the named task (`cacherl env play --task`) and follow /hint: does the verdict ask for something else?",
    ),
    Check(
        name="random",
        run=verdicts.chance,
        meaning="success says little: it can be had without skill",
        remedy="ask for a longer or a rarer answer, or for evidence: calls without which no answer counts",
    ),
    Check(
        name="bare answer",
        run=verdicts.bare_answer,
        meaning="the answer counts without evidence, so guessing is learned",
        remedy="let the verdict ask for the calls that lead to the answer (envs.calllog.CallLog), or for the state they make",
    ),
    Check(
        name="verdict",
        run=verdicts.out_of_reach,
        meaning="the model can earn the reward without solving the task",
        remedy="dispatch calls over a fixed list of names, never by getattr, and keep the first verdict of an episode",
    ),
    Check(
        name="determinism",
        run=repetition.determinism,
        meaning="a seed does not fix the episode, so nothing can be reproduced",
        remedy="draw everything from random.Random(task.seed); use no clock, no global random state, no counter",
    ),
    Check(
        name="processes",
        run=repetition.processes,
        reloads=True,
        meaning="actors in different processes play different worlds for one task",
        remedy="sort sets before use, and seed with numbers or text, not with hash()",
    ),
    Check(
        name="siblings",
        run=repetition.siblings,
        meaning="episodes share state, so the baseline of a group means nothing",
        remedy="keep all state in the object that start() or make_env() gives anew; no module or class attributes that change",
    ),
    Check(
        name="snapshot",
        run=repetition.snapshot,
        meaning="an episode cannot be forked or resumed",
        remedy="let state() hold everything that calls change, as plain JSON values, and restore() put it back",
    ),
    Check(
        name="vocabulary",
        run=shape.vocabulary,
        meaning="the tiny model's tokenizer does not know all the words (a model of your own, model.path, is not affected)",
        remedy="let texts() yield every word and separator that prompts, results and answers can hold",
    ),
    Check(
        name="reset cost",
        run=shape.reset_cost,
        meaning="actors spend their time on resets",
        remedy=f"bring a reset below {shape.RESET_SECONDS * 1000:g} ms: prepare what all tasks share once, in the source",
    ),
)
