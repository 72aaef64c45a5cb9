"""`ready_source`: one task of each level is begun before a run starts, so that a broken environment is refused in a second."""

from __future__ import annotations

import asyncio
import random

from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError, NoSolutionError
from envs.base import TRAIN, VAL, EnvStep, PlannedCall, Solution, Task, TaskSource, ToolEnv
from envs.interface import require
from envs.mix import parts_of
from envs.registry import load_source, training_levels
from envs.simulator import Simulator, release
from envs.source import SimulatedSource

#: Seconds that one task may take to begin.
_DEADLINE_S = 60.0


def ready_source(section: EnvSection) -> TaskSource:
    """The source that `section` names, after its `preflight`.

    Raises:
        ConfigError: as `load_source` and `preflight`.
    """
    source = load_source(section)
    asyncio.run(preflight(source, section))
    return source


async def preflight(source: TaskSource, section: EnvSection) -> None:
    """Draw, reset and make one call of the solution in a task of every level that the run trains and evaluates on.

    `envs.check` looks further; this finds what would otherwise stop a run after its engines have started.

    Raises:
        ConfigError: something is missing or raises; names the task and what to do.
    """
    where = f"env.name {section.name!r}"
    levels = training_levels(source, section)
    for part in parts_of(source).values():
        for split in (TRAIN, VAL):
            for level in part.source.levels(split):
                if level in levels:
                    await _try(part.source, split, level, where)


async def _try(source: TaskSource, split: str, level: int, where: str) -> None:
    step = f"drawing a task of split {split!r}, level {level}"
    try:
        task = source.sample(random.Random(0), split=split, level=level)
        _demand(task, Task, where, "sample()")
        if task.family != source.family:
            raise ConfigError(f"{where}: family {source.family!r} draws a task of family {task.family!r}; they must agree")
        step = f"beginning task {task.task_id}"
        async with asyncio.timeout(_DEADLINE_S):
            await _begin(source, task, where)
    except ConfigError:
        raise
    except TimeoutError:
        raise ConfigError(f"{where}: {step} took more than {_DEADLINE_S:g} s") from None
    except Exception as error:
        raise ConfigError(f"{where}: {step} raised {type(error).__name__}: {error}; `cacherl env check` tells more") from error


def require_solutions(source: TaskSource, section: EnvSection, what: str) -> None:
    """Look for a solution of one training task of every level that the run trains on.

    Args:
        what: the setting that needs solutions, for the message.

    Raises:
        ConfigError: nobody knows one; names the task.
    """
    levels = training_levels(source, section)
    for part in parts_of(source).values():
        for level in sorted(set(levels) & set(part.source.levels(TRAIN))):
            task = part.source.sample(random.Random(0), split=TRAIN, level=level)
            reason = _without_solution(part.source, task)
            if reason:
                raise ConfigError(
                    f"{what} follows solutions, but env.name {section.name!r} knows none of task {task.task_id} ({reason}); "
                    "take another"
                )


def _without_solution(source: TaskSource, task: Task) -> str:
    """Why nobody could learn from a task's solution how to act; '' if one could."""
    try:
        solution = source.solution(task)
    except NoSolutionError as error:
        return str(error)
    return "" if solution.steps or not source.tools() else "its solution is an answer without any call"


def _first_call(source: TaskSource, task: Task, where: str) -> tuple[PlannedCall, ...]:
    """The call that a solution begins with; none where it begins with words, or no solution is known."""
    try:
        solution = source.solution(task)
    except NoSolutionError:
        return ()
    _demand(solution, Solution, where, "solution()")
    return solution.calls[:1]


async def _begin(source: TaskSource, task: Task, where: str) -> None:
    if isinstance(source, SimulatedSource):
        simulator = source.start(task)
        require(simulator, Simulator, where)
        await release(simulator)
    calls = _first_call(source, task, where)
    env = source.make_env()
    require(env, ToolEnv, where)
    try:
        await env.reset(task, rollout_seed=0)
        _demand(await env.step(source.format.render(calls) if calls else ""), EnvStep, where, "step()")
        env.restore(env.snapshot())
        env.verdict()
    finally:
        await env.close()


def _demand(value: object, kind: type, where: str, what: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{where}: {what} must return a {kind.__name__} (envs/base.py), got {type(value).__name__}")
