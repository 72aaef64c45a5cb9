"""`WorldEnv`: a `ToolEnv` around a `World`, be it simulated, of live tools or of a public suite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cacherl.errors import EnvironmentFault
from cacherl.trajectory import Message, ToolCall
from envs.base import ActionFormat, EnvStep, ParsedCall, Task, ToolSpec, require_share
from envs.jsontext import compact
from envs.noise import ToolNoise
from envs.observation import TRANSIENT, NoResultError, render_error
from envs.simulator import Promising, ToolResult
from envs.world import World, state_hash


class WorldEnv:
    """Reads calls, refuses bad ones, lets good ones fail or wait as the seed says, and runs them in the world.

    Calls of one turn run in order. A refused call is answered with an error and never ends the episode. A turn without any
    call is for the world to reply to.

    The seeded noise comes before the tool-result cache: a failure is never recorded, and the same calls fail whatever is in it.
    Latency is waited for only where a tool is really called.

    Args:
        start: the untouched world of a task.
        tools: those that may be called.
        failure_rate, latency_s: see `ToolNoise`.
    """

    def __init__(
        self,
        start: Callable[[Task], World],
        *,
        tools: Sequence[ToolSpec],
        action_format: ActionFormat,
        failure_rate: float,
        latency_s: float,
    ) -> None:
        self._start = start
        self._tools = tuple(tools)
        self._format = action_format
        self._failure_rate = failure_rate
        self._latency_s = latency_s
        self._task: Task | None = None
        self._world: World | None = None
        self._outcome: float | None = None

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    async def reset(self, task: Task, *, rollout_seed: int) -> None:
        await self.close()
        self._task = task
        self._outcome = None
        self._world = self._start(task)
        self._noise = ToolNoise(rollout_seed, failure_rate=self._failure_rate, latency_s=self._latency_s)

    async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
        task, world = self._running()
        before = state_hash(task.task_id, world.state())
        potential = world.potential() if isinstance(world, Promising) else None
        parsed = self._format.parse(text, finish_reason=finish_reason)
        if not parsed:
            return self._replied(await world.reply(text, finish_reason=finish_reason), before, potential)
        calls, messages = [], []
        for item in parsed:
            call, content = await self._run(world, item)
            calls.append(call)
            messages.append(Message(role="tool", content=content, name=call.name or None))
        return EnvStep(
            messages=tuple(messages),
            calls=tuple(calls),
            terminated=False,
            outcome=None,
            state_hash=before,
            seconds=sum(call.seconds for call in calls),
            potential=potential,
        )

    def _replied(self, reply: float | tuple[Message, ...], before: str, potential: float | None) -> EnvStep:
        facts: dict[str, Any] = {"calls": (), "state_hash": before, "potential": potential}
        if isinstance(reply, tuple):
            return EnvStep(messages=reply, terminated=False, outcome=None, **facts)
        self._outcome = float(reply)
        return EnvStep(messages=(), terminated=True, outcome=self._outcome, **facts)

    async def _run(self, world: World, item: ParsedCall) -> tuple[ToolCall, str]:
        if item.problem is not None:
            return _failed(item, "parse"), render_error(item.problem)
        if refusal := world.refusal(item.name, item.arguments):
            kind, text = refusal
            return _failed(item, kind), render_error(text)
        fails, latency_s = self._noise.draw()
        if fails:
            await _wait(latency_s)
            return _failed(item, "transient", seconds=latency_s), render_error(TRANSIENT)
        try:
            served = await world.call(item.name, item.arguments)
        except NoResultError as problem:
            return _failed(item, problem.kind), render_error(problem.text)
        if served.tier in (None, "live"):
            await _wait(latency_s)
        else:
            latency_s = 0.0
        result = served.result
        call = ToolCall(
            name=item.name,
            arguments=item.arguments,
            ok=result.error is None,
            error=None if result.error is None else result.kind,
            repairs=item.repairs,
            tags=result.tags,
            seconds=latency_s + served.seconds,
            tier=served.tier,
        )
        return call, _shown(result, item.name)

    def snapshot(self) -> dict[str, Any]:
        _, world = self._begun()
        return {"world": world.state(), "draws": self._noise.draws, "outcome": self._outcome}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        _, world = self._begun()
        world.restore(snapshot["world"])
        self._noise.draws = snapshot["draws"]
        self._outcome = snapshot["outcome"]

    def verdict(self) -> float:
        _, world = self._begun()
        return require_share(world.verdict(), "the verdict") if self._outcome is None else self._outcome

    async def close(self) -> None:
        world, self._world, self._task = self._world, None, None
        if world is not None:
            await world.close()

    def _begun(self) -> tuple[Task, World]:
        if self._task is None or self._world is None:
            raise EnvironmentFault("no episode: call reset first")
        return self._task, self._world

    def _running(self) -> tuple[Task, World]:
        task, world = self._begun()
        if self._outcome is not None:
            raise EnvironmentFault(f"the episode of {task.task_id} has ended: call reset before the next step")
        return task, world


def _shown(result: ToolResult, name: str) -> str:
    try:
        return compact(result.content) if result.error is None else render_error(result.error)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(f"tool {name!r} gave a result that JSON cannot carry: {error}") from error


async def _wait(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


def _failed(item: ParsedCall, error: str, *, seconds: float = 0.0) -> ToolCall:
    return ToolCall(name=item.name, arguments=item.arguments, ok=False, error=error, repairs=item.repairs, seconds=seconds)
