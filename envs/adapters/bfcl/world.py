"""`BfclWorld`: one episode of a BFCL task, with the official verdict, turn by turn.

A turn of the user lasts until the agent says something without a call. Then the states of the agent's APIs and of those that
the ground truth was run on must be equal, and every result that the ground truth of this turn gave must be among those that the
agent has had so far; where the ground truth makes no call, nothing is checked (bfcl_eval, multi_turn_checker.py). A turn that
fails ends the episode.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from cacherl.trajectory import Message
from envs.adapters.bfcl.apis import Apis
from envs.adapters.bfcl.package import Entry
from envs.adapters.bfcl.prompt import offer
from envs.jsontext import compact
from envs.simulator import ToolResult
from envs.world import Served


class BfclWorld:
    """The state is the list of calls of every turn so far: the APIs are deterministic, so it leads back to theirs."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._begin()

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        """An unknown tool counts as an attempt, as it does officially. Arguments are for the tool itself to judge."""
        if name in self._apis:
            return None
        self._turns[-1].append([name, dict(arguments)])
        return "unknown_tool", "unknown tool, use one of those that were offered"

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        return Served(result=_result(self._call(name, arguments)))

    async def reply(self, text: str, *, finish_reason: str) -> float | tuple[Message, ...]:
        del text, finish_reason
        if not self._turn_is_right():
            return 0.0
        self._turns.append([])
        turn = len(self._turns) - 1
        if turn == len(self._entry.truth):
            return 1.0
        return (Message(role="user", content=offer(self._entry, turn) or self._entry.questions[turn]),)

    def verdict(self) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        return {"turns": [list(turn) for turn in self._turns]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._begin()
        for index, turn in enumerate(state["turns"]):
            if index:
                self._turn_is_right()
                self._turns.append([])
            for name, arguments in turn:
                if name in self._apis:
                    self._call(name, arguments)
                else:
                    self.refusal(name, arguments)

    async def close(self) -> None:
        """Nothing to release."""

    def _begin(self) -> None:
        self._apis = Apis(self._entry)
        self._truth = Apis(self._entry)
        self._turns: list[list[Any]] = [[]]
        self._results: Counter[str] = Counter()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self._turns[-1].append([name, dict(arguments)])
        result = self._apis.call(name, arguments)
        self._results[result] += 1
        return result

    def _turn_is_right(self) -> bool:
        calls = self._entry.truth[len(self._turns) - 1]
        expected = Counter(self._truth.call(call.name, call.arguments) for call in calls)
        if not calls:
            return True
        return bool(self._turns[-1]) and self._apis.same_state(self._truth) and expected <= self._results


def _result(text: str) -> ToolResult:
    try:
        value = json.loads(text)
        compact(value)
    except ValueError:
        value = text
    if isinstance(value, dict):
        return ToolResult(error=str(value["error"])) if value.keys() == {"error"} else ToolResult(content=value)
    if text.startswith("Error during execution: "):
        return ToolResult(error=text)
    return ToolResult(content={"result": value})
