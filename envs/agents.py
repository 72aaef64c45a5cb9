"""Agents that run any environment without a model: oracle, sloppy teacher, random, scripted.

An agent is a pure function of its seed, the task and the history, so one instance may serve any number of episodes, and
episodes replay exactly.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from cacherl.trajectory import Message
from envs.answer import render_answer
from envs.base import PlannedCall, Solution, SolutionStep, Task, TaskSource, ToolSpec
from envs.noise import uniform
from envs.observation import error_text

#: What an oracle says in a turn without a call that is not its answer.
PAUSE = "Done."


class Agent(Protocol):
    """Acts in place of a model."""

    def act(self, task: Task, history: Sequence[Message]) -> str:
        """The text of the next assistant turn, after `history`: the assistant and tool messages so far, prompt excluded."""


class OracleAgent:
    """Follows the source's own solution, one call a turn, and repeats a call that failed."""

    def __init__(self, source: TaskSource) -> None:
        self._source = source

    def act(self, task: Task, history: Sequence[Message]) -> str:
        solution = self._source.solution(task)
        done = _steps_done(solution, history)
        if done == len(solution.steps):
            return render_answer(solution.answer)
        call = solution.steps[done].call
        return PAUSE if call is None else self._source.format.render([call])


class TeacherAgent:
    """An oracle that is careless: what demonstrations are made of.

    With probability `sloppiness` it answers an intermediate value as soon as it has one, at every hop, or gives up after a
    failed call and answers what it has at hand.

    Args:
        sloppiness: in [0, 1); 0 acts as the oracle.
        seed: fixes the choices; give every demonstration its own.
    """

    def __init__(self, source: TaskSource, *, sloppiness: float, seed: int) -> None:
        if not 0 <= sloppiness < 1:
            raise ValueError(f"sloppiness must lie in [0, 1), got {sloppiness}")
        self._source = source
        self._oracle = OracleAgent(source)
        self._sloppiness = sloppiness
        self._seed = seed

    def act(self, task: Task, history: Sequence[Message]) -> str:
        solution = self._source.solution(task)
        done = _steps_done(solution, history)
        failed = bool(history) and error_text(history[-1]) is not None
        may_stop = failed or (0 < done < len(solution.steps) and solution.steps[done - 1].partial_answer is not None)
        if may_stop and uniform("teacher", self._seed, task.task_id, len(history)) < self._sloppiness:
            return render_answer(_at_hand(solution, done))
        return self._oracle.act(task, history)


class RandomAgent:
    """Makes random calls, valid and invalid, with words that it has seen, and answers one of them in the end."""

    def __init__(self, source: TaskSource, *, seed: int) -> None:
        self._source = source
        self._seed = seed

    def act(self, task: Task, history: Sequence[Message]) -> str:
        rng = random.Random(f"{self._seed} {task.task_id} {len(history)}")
        words = sorted({word for message in (*task.messages, *history) for word in re.findall(r"\w+", message.content)})
        choice = rng.random()
        if choice < 0.15 or not self._source.tools():
            return render_answer(rng.choice(words or ["a"]))
        call = _random_call(rng, self._source.tools(), words)
        if choice < 0.25:
            call = PlannedCall(name=rng.choice([call.name, "nothing"]), arguments={})
        text = self._source.format.render([call])
        return text[: rng.randrange(1, len(text))] if choice > 0.95 else text


class ScriptedAgent:
    """Says the given texts in order, and the last one ever after."""

    def __init__(self, texts: Sequence[str]) -> None:
        if not texts:
            raise ValueError("ScriptedAgent needs at least one text")
        self._texts = tuple(texts)

    def act(self, task: Task, history: Sequence[Message]) -> str:
        turn = sum(message.role == "assistant" for message in history)
        return self._texts[min(turn, len(self._texts) - 1)]


def _steps_done(solution: Solution, history: Sequence[Message]) -> int:
    """How many steps of the solution were answered as they should be."""
    done = 0
    for message in history:
        if done < len(solution.steps) and _answers(message, solution.steps[done]):
            done += 1
    return done


def _answers(message: Message, step: SolutionStep) -> bool:
    if step.call is None:
        return message.role == "assistant"
    return message.role == "tool" and error_text(message) == step.error


def _at_hand(solution: Solution, done: int) -> str:
    partial = [step.partial_answer for step in solution.steps[:done] if step.partial_answer is not None]
    return partial[-1] if partial else solution.guess


def _random_call(rng: random.Random, tools: Sequence[ToolSpec], words: Sequence[str]) -> PlannedCall:
    spec = rng.choice(tools)
    properties = spec.parameters.get("properties", {})
    required = spec.parameters.get("required", ())
    chosen = {name: part for name, part in properties.items() if name in required or rng.random() < 0.5}
    return PlannedCall(name=spec.name, arguments={name: _random_value(rng, part, words) for name, part in chosen.items()})


def _random_value(rng: random.Random, part: Mapping[str, Any], words: Sequence[str]) -> Any:
    if "enum" in part:
        return rng.choice(part["enum"])
    if "anyOf" in part:
        return _random_value(rng, rng.choice(part["anyOf"]), words)
    makers: dict[str, Callable[[], Any]] = {
        "string": lambda: rng.choice(words or ["a"]),
        "integer": lambda: rng.randrange(100),
        "number": lambda: rng.random() * 100,
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [_random_value(rng, part.get("items") or {}, words) for _ in range(rng.randrange(3))],
        "object": lambda: {name: _random_value(rng, inner, words) for name, inner in part.get("properties", {}).items()},
    }
    kind = part.get("type", "string")
    return makers.get(kind if isinstance(kind, str) else rng.choice(kind), lambda: None)()
