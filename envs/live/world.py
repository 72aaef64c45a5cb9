"""`LiveWorld`: the toolkits of one episode, and the verdict on its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from envs.answer import read_answer
from envs.base import Solution
from envs.calllog import CallLog
from envs.live.tools import LiveTools
from envs.schema import Toolbox
from envs.world import Served


class LiveWorld:
    """Several toolkits, each with a state of its own.

    The verdict is 1.0 for the exact answer after all calls of the solution, as far as one is known, else 0.0. A call that was
    served the result of a similar one counts as that one.

    Args:
        owners: tool -> index of its toolkit in `toolkits`.
        calls_matter: the solution's calls are known, so calls get tags and the answer alone is worth nothing.
    """

    def __init__(
        self,
        toolkits: Sequence[LiveTools],
        owners: Mapping[str, int],
        *,
        toolbox: Toolbox,
        solution: Solution,
        calls_matter: bool,
    ) -> None:
        self._toolkits = toolkits
        self._owners = owners
        self._toolbox = toolbox
        self._answer = solution.answer
        steps = solution.calls
        self._log = CallLog(needed=steps, evidence=steps)
        self._calls_matter = calls_matter
        self._restoring: list[Mapping[str, Any]] | None = None

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        return self._toolbox.refusal(name, arguments)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        if self._restoring is not None:
            for toolkit, state in zip(self._toolkits, self._restoring, strict=True):
                await toolkit.restore(state)
            self._restoring = None
        served, made = await self._toolkits[self._owners[name]].call(name, arguments)
        tags = self._log.record(name, made)
        return replace(served, result=replace(served.result, tags=tags)) if self._calls_matter else served

    async def reply(self, text: str, *, finish_reason: str) -> float:
        value = read_answer(text, finish_reason=finish_reason)
        return float(value == self._answer and self._log.complete)

    def verdict(self) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        toolkits = self._restoring if self._restoring is not None else [toolkit.state() for toolkit in self._toolkits]
        return {"toolkits": list(toolkits), "done": self._log.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._restoring = list(state["toolkits"])
        self._log.restore(state["done"])

    async def close(self) -> None:
        for toolkit in self._toolkits:
            await toolkit.close()
