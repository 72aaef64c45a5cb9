"""ToolSpec, Task, EnvStep, ToolEnv, TaskSource: the interface between an agent and a world.

One episode, seen from the outside::

    source = load_source(section)                     # envs/registry.py
    task = source.sample(rng, split="train", level=2)
    env = source.make_env()
    await env.reset(task, rollout_seed=7)             # task.seed fixes the world, rollout_seed the tool noise
    while not (step := await env.step(await generate(...), finish_reason="stop")).terminated:
        ...                                           # step.messages are the tool results of the turn
    step.outcome                                      # 1.0 success, 0.0 failure
    await env.close()
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jsonschema import Draft202012Validator

from cacherl.errors import EnvironmentFault
from cacherl.trajectory import Message, ToolCall

#: Splits that every family offers: 'val' shares no solution step with 'train'.
TRAIN, VAL = "train", "val"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the agent sees it.

    Attributes:
        parameters: JSON Schema of the arguments: an object that admits no additional properties.
        read_only: a call changes nothing, so its result depends on the arguments and the state alone.
        cost: price of one call, in the family's own unit.

    Raises:
        ValueError: `parameters` is not such a schema.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool = True
    cost: float = 0.0

    def __post_init__(self) -> None:
        Draft202012Validator.check_schema(self.parameters)
        if self.parameters.get("type") != "object" or self.parameters.get("additionalProperties") is not False:
            raise ValueError(f"tool {self.name!r}: parameters must have type 'object' and additionalProperties false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem to solve. Holds no answer.

    Attributes:
        task_id: unique per (family, split, level, seed); siblings of a group share it.
        seed: fixes the world and the question.
        messages: the prompt.
        params: facts about the question that the prompt states too, as plain JSON values.
    """

    task_id: str
    family: str
    split: str
    level: int
    seed: int
    messages: tuple[Message, ...]
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A tool call that an agent wants to make."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolutionStep:
    """One turn of a solution.

    Attributes:
        call: what is called in it; None: nothing, so that the user goes on.
        partial_answer: what a careless agent would answer after it; None: nothing yet.
        error: the error that the call is answered with, where learning of it is the point; None: it succeeds.
    """

    call: PlannedCall | None
    partial_answer: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Turns that solve a task in order, then its final answer. `guess` is what can be answered before any call."""

    steps: tuple[SolutionStep, ...]
    answer: str
    guess: str

    @property
    def calls(self) -> tuple[PlannedCall, ...]:
        """Its calls, in order."""
        return tuple(step.call for step in self.steps if step.call is not None)


def require_share(value: float, what: str) -> float:
    """`value` if it lies in [0, 1], which NaN does not.

    Raises:
        EnvironmentFault: it does not.
    """
    if not 0 <= value <= 1:
        raise EnvironmentFault(f"{what} must lie in [0, 1], got {value}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvStep:
    """What one turn of the agent led to.

    Attributes:
        messages: the tool results (role 'tool'), one for each of `calls`, in order; without calls, what the user says next.
        calls: the calls found in the text, with what became of them and the environment's tags.
        terminated: the turn was the final answer.
        outcome: the verdict in [0, 1] once terminated, else None.
        state_hash: hash of the state that the turn acted on (before it); equal states of one task hash equally.
        seconds: simulated latency of the tools that was waited for.
        potential: how promising that state is, in [0, 1]; None: the environment does not say.

    Raises:
        EnvironmentFault: outcome or potential is no such number.
        ValueError: the fields contradict each other.
    """

    messages: tuple[Message, ...]
    calls: tuple[ToolCall, ...]
    terminated: bool
    outcome: float | None
    state_hash: str
    seconds: float = 0.0
    potential: float | None = None

    def __post_init__(self) -> None:
        if self.terminated == (self.outcome is None):
            raise ValueError(f"EnvStep: terminated={self.terminated} contradicts outcome={self.outcome}")
        for name, value in (("outcome", self.outcome), ("potential", self.potential)):
            if value is not None:
                require_share(value, f"EnvStep: {name}")
        if self.calls and len(self.messages) != len(self.calls):
            raise ValueError(f"EnvStep: {len(self.messages)} messages answer {len(self.calls)} calls")


class ToolEnv(Protocol):
    """One episode at a time. Instances share nothing that changes, so any number may run interleaved."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the agent may call."""

    async def reset(self, task: Task, *, rollout_seed: int) -> None:
        """Begin an episode. The prompt is `task.messages`; `rollout_seed` fixes latency and transient failures."""

    async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
        """Act on the text of one assistant turn; `finish_reason` is the engine's ('stop', 'length' or 'abort').

        Raises:
            EnvironmentFault: no episode is running.
        """

    def snapshot(self) -> dict[str, Any]:
        """The episode's state as plain JSON values."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a `snapshot` of the same task and rollout_seed."""

    def verdict(self) -> float:
        """Outcome in [0, 1] if the episode were cut off now: 0.0 unless it is already solved."""

    async def close(self) -> None:
        """Release what the episode holds; repeated calls are harmless."""


class ActionFormat(Protocol):
    """How tool calls are written in an assistant turn."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Marks that a word-level tokenizer should keep as single tokens."""

    def render(self, calls: Sequence[PlannedCall]) -> str:
        """The text of a turn that makes `calls`; `parse` reads it back without repairs."""

    def parse(self, text: str, *, finish_reason: str) -> tuple[ParsedCall, ...]:
        """Every call that `text` makes or attempts, in order; empty: the text is a final answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A call as read from text. `problem` says what is wrong with it (then `arguments` is empty), None when readable."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    repairs: tuple[str, ...] = ()


class TaskSource(Protocol):
    """A family of tasks with its environments, configured by an `EnvSection`."""

    @property
    def family(self) -> str:
        """Name of the family."""

    @property
    def format(self) -> ActionFormat:
        """How its environments read tool calls."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of its environments; empty: there are none, or they differ by task and the prompts tell of them."""

    def levels(self, split: str) -> tuple[int, ...]:
        """Difficulties that exist in `split`, easiest first; empty: there is no such split."""

    def sample(self, rng: random.Random, *, split: str, level: int) -> Task:
        """A task drawn with `rng`.

        Raises:
            ValueError: no such split or level.
        """

    def get(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            ValueError: the id is not one of this source's.
        """

    def solution(self, task: Task) -> Solution:
        """How to solve `task`: for oracles and demonstrations, never shown to the policy.

        Raises:
            NoSolutionError: nobody knows.
        """

    def tags(self) -> tuple[str, ...]:
        """Marks that a word-level tokenizer must split off first, as single tokens."""

    def vocabulary(self) -> Iterable[str]:
        """Every other token of a word-level tokenizer: each run of word or of non-word characters (`envs.vocabulary`)
        that can appear in a prompt, a call or a tool result."""

    def make_env(self) -> ToolEnv:
        """A fresh environment for one episode after another."""
