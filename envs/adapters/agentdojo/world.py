"""`DojoWorld`: one episode of an agentdojo user task; the verdict is the task's own utility."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from envs.adapters.agentdojo.package import UserTask, runtime, tool_specs
from envs.answer import read_answer
from envs.schema import Toolbox
from envs.simulator import ToolResult
from envs.world import Served

logger = logging.getLogger(__name__)


class DojoWorld:
    """The state is the list of calls so far: environments are deterministic, so it leads back to theirs."""

    def __init__(self, item: UserTask) -> None:
        self._item = item
        self._toolbox = Toolbox(tool_specs(item.suite))
        self._begin()

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        return self._toolbox.refusal(name, arguments)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        return Served(result=self._call(name, arguments))

    async def reply(self, text: str, *, finish_reason: str) -> float:
        """Any turn without a call is the final answer; of one with an answer mark, what follows it."""
        answer = read_answer(text, finish_reason=finish_reason)
        return self._utility(text if answer is None else answer)

    def verdict(self) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        return {"calls": [[call.function, dict(call.args)] for call in self._calls]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._begin()
        for name, arguments in state["calls"]:
            self._call(name, arguments)

    async def close(self) -> None:
        """Nothing to release."""

    def _begin(self) -> None:
        self._before, self._environment = self._item.environment(), self._item.environment()
        self._calls: list[Any] = []

    def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        from agentdojo.functions_runtime import FunctionCall

        self._calls.append(FunctionCall(function=name, args=dict(arguments)))
        result, error = runtime(self._item.suite).run_function(self._environment, name, dict(arguments))
        if error is not None:
            return ToolResult(error=error)
        value = json.loads(json.dumps(result, default=_plain))
        return ToolResult(content=value if isinstance(value, dict) else {"result": value})

    def _utility(self, answer: str) -> float:
        """agentdojo's judgement; where its check fails over what the agent did, the task is not solved."""
        task = self._item.task
        try:
            solved = task.utility_from_traces(answer, self._before, self._environment, self._calls)
            if solved is None:
                solved = task.utility(answer, self._before, self._environment)
        except Exception:
            logger.exception("the check of agentdojo task %s %s failed", self._item.suite, task.ID)
            return 0.0
        return float(bool(solved))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)
