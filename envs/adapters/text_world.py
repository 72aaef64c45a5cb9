"""`TextWorld`: an episode of an environment that reads whole turns of text and answers with text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cacherl.errors import ConfigError, EnvironmentFault, NoSolutionError
from cacherl.trajectory import Message
from envs.base import ParsedCall, PlannedCall, Solution, require_share
from envs.world import Served

#: From the sum of an episode's rewards and what its last step said besides to the verdict in [0, 1].
Outcome = Callable[[float, Mapping[str, Any]], float]


def clipped(total: float, info: Mapping[str, Any]) -> float:
    """The sum of the rewards, between 0 and 1."""
    del info
    return min(1.0, max(0.0, total))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStep:
    """What a turn led to. `messages` say what the agent is told, `info` what the environment said besides."""

    messages: tuple[Message, ...]
    reward: float
    done: bool
    info: Mapping[str, Any] = field(default_factory=dict)


class TextEpisode(Protocol):
    """A foreign environment, begun."""

    def act(self, text: str) -> TextStep:
        """One turn of the agent."""

    def close(self) -> None:
        """Release it."""


class NoCalls:
    """An action format without calls: every turn is text for the environment."""

    tags: tuple[str, ...] = ()

    def render(self, calls: Sequence[PlannedCall]) -> str:
        raise ConfigError("this environment reads text, not tool calls; play it with a model or with a ScriptedAgent")

    def parse(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        del text, finish_reason
        return ()


class TextWorld:
    """The state is the list of turns so far, which are acted again to come back to it: the environment must be deterministic.

    Args:
        begin: the episode, untouched.
    """

    def __init__(self, begin: Callable[[], TextEpisode], outcome: Outcome) -> None:
        self._start = begin
        self._outcome = outcome
        self._episode: TextEpisode | None = None
        self._turns: list[str] = []
        self._total = 0.0

    def refusal(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        del name, arguments
        return "unknown_tool", "there are no tools"

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Served:
        raise EnvironmentFault(f"tool {name!r} was called in an environment of text, with {dict(arguments)}")

    async def reply(self, text: str, *, finish_reason: str) -> float | tuple[Message, ...]:
        del finish_reason
        step = self._act(text)
        if not step.done:
            return step.messages
        return require_share(self._outcome(self._total, step.info), "the outcome of an episode")

    def verdict(self) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        return {"turns": list(self._turns)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._release()
        for text in state["turns"]:
            self._act(text)

    async def close(self) -> None:
        self._release()

    def _act(self, text: str) -> TextStep:
        if self._episode is None:
            self._episode = self._start()
        step = self._episode.act(text)
        self._turns.append(text)
        self._total += step.reward
        return step

    def _release(self) -> None:
        episode, self._episode = self._episode, None
        self._turns, self._total = [], 0.0
        if episode is not None:
            episode.close()


def no_solution(_: Any) -> Solution:
    """Of tasks that nobody but the policy solves.

    Raises:
        NoSolutionError: always.
    """
    raise NoSolutionError("this environment knows no solutions, so there are no demonstrations; set warm_start.updates=0")
