"""`SimulatedEnv`: a `ToolEnv` around the simulator of a family."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from cacherl.errors import EnvironmentFault
from cacherl.trajectory import Message, ToolCall
from envs.answer import read_answer
from envs.base import ActionFormat, EnvStep, ParsedCall, Task, ToolSpec
from envs.jsontext import canonical, compact
from envs.noise import ToolNoise
from envs.observation import TRANSIENT, render_error
from envs.schema import Toolbox
from envs.simulator import Promising, Simulator


class SimulatedEnv:
    """Reads calls, refuses bad ones, lets good ones fail or wait as the seed says, and runs them on the simulator.

    Calls of one turn run in order. A refused call is answered with an error and never ends the episode; a turn without
    any call does.

    Args:
        start: the untouched world of a task.
        failure_rate, latency_s: see `ToolNoise`.
    """

    def __init__(
        self,
        start: Callable[[Task], Simulator],
        *,
        toolbox: Toolbox,
        action_format: ActionFormat,
        failure_rate: float,
        latency_s: float,
    ) -> None:
        self._start = start
        self._toolbox = toolbox
        self._format = action_format
        self._failure_rate = failure_rate
        self._latency_s = latency_s
        self._task: Task | None = None
        self._outcome: float | None = None

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._toolbox.specs

    async def reset(self, task: Task, *, rollout_seed: int) -> None:
        self._task = task
        self._outcome = None
        self._simulator = self._start(task)
        self._noise = ToolNoise(rollout_seed, failure_rate=self._failure_rate, latency_s=self._latency_s)

    async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
        task = self._running()
        state_hash = _hash(task.task_id, self._simulator.state())
        potential = self._simulator.potential() if isinstance(self._simulator, Promising) else None
        parsed = self._format.parse(text, finish_reason=finish_reason)
        if not parsed:
            self._outcome = self._simulator.answer(read_answer(text, finish_reason=finish_reason))
            return EnvStep(
                messages=(),
                calls=(),
                terminated=True,
                outcome=self._outcome,
                state_hash=state_hash,
                potential=potential,
            )
        calls, messages = [], []
        for item in parsed:
            call, content = await self._run(item)
            calls.append(call)
            messages.append(Message(role="tool", content=content, name=call.name or None))
        return EnvStep(
            messages=tuple(messages),
            calls=tuple(calls),
            terminated=False,
            outcome=None,
            state_hash=state_hash,
            seconds=sum(call.seconds for call in calls),
            potential=potential,
        )

    async def _run(self, item: ParsedCall) -> tuple[ToolCall, str]:
        if item.problem is not None:
            return _failed(item, "parse"), render_error(item.problem)
        if item.name not in self._toolbox:
            return _failed(item, "unknown_tool"), render_error(self._toolbox.unknown)
        if problem := self._toolbox.problem(item.name, item.arguments):
            return _failed(item, "arguments"), render_error(problem)
        fails, seconds = self._noise.draw()
        if seconds > 0:
            await asyncio.sleep(seconds)
        if fails:
            return _failed(item, "transient", seconds=seconds), render_error(TRANSIENT)
        result = self._simulator.call(item.name, item.arguments)
        if result.error is not None:
            return _failed(item, "tool", tags=result.tags, seconds=seconds), render_error(result.error)
        call = ToolCall(
            name=item.name, arguments=item.arguments, ok=True, repairs=item.repairs, tags=result.tags, seconds=seconds
        )
        return call, compact(result.content)

    def snapshot(self) -> dict[str, Any]:
        self._require_task()
        return {"simulator": self._simulator.state(), "draws": self._noise.draws, "outcome": self._outcome}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._require_task()
        self._simulator.restore(snapshot["simulator"])
        self._noise.draws = snapshot["draws"]
        self._outcome = snapshot["outcome"]

    def verdict(self) -> float:
        self._require_task()
        return self._simulator.verdict() if self._outcome is None else self._outcome

    async def close(self) -> None:
        self._task = None

    def _require_task(self) -> Task:
        if self._task is None:
            raise EnvironmentFault("no episode: call reset first")
        return self._task

    def _running(self) -> Task:
        task = self._require_task()
        if self._outcome is not None:
            raise EnvironmentFault(f"the episode of {task.task_id} has ended: call reset before the next step")
        return task


def _failed(item: ParsedCall, error: str, *, tags: tuple[str, ...] = (), seconds: float = 0.0) -> ToolCall:
    return ToolCall(
        name=item.name,
        arguments=item.arguments,
        ok=False,
        error=error,
        repairs=item.repairs,
        tags=tags,
        seconds=seconds,
    )


def _hash(task_id: str, state: Mapping[str, Any]) -> str:
    return hashlib.blake2b(f"{task_id} {canonical(state)}".encode(), digest_size=8).hexdigest()
