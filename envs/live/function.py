"""`@tool`: a plain Python function with type hints and a docstring as a tool.

@tool
def convert(amount: float, currency: Literal["EUR", "USD"] = "EUR") -> dict:
    '''Convert an amount to Swiss francs.'''
    return {"chf": amount * RATES[currency]}

toolkit = FunctionToolkit("money", [convert])
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, overload

from pydantic import ValidationError

from cacherl.errors import EnvironmentFault
from envs.base import Task, ToolSpec
from envs.live.hints import parameters_of, spec_of
from envs.live.own_thread import in_own_thread
from envs.live.plain import NotPlainError, as_content, legible
from envs.live.toolkit import named_once
from envs.observation import NoResultError
from envs.simulator import ToolResult

logger = logging.getLogger(__name__)


class ToolError(Exception):
    """Raised by a tool to answer with an error that it would answer with again; its text is what the agent reads."""


class FunctionTool:
    """A function as a tool; still callable as itself.

    Args:
        name: what the agent calls it; None: the function's own name.
        read_only, cost: see `ToolSpec`.
        timeout_s: seconds after which a call counts as failed.

    Raises:
        ValueError: the function has no docstring, or a parameter without a type hint that JSON can carry.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, read_only: bool, cost: float, timeout_s: float
    ) -> None:
        name = name or function.__name__
        self._function = function
        self._timeout_s = timeout_s
        self._readers = parameters_of(function, name)
        self.spec = spec_of(function, self._readers, name=name, read_only=read_only, cost=cost)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return self._function(*positional, **named)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: bound when taken from an instance, itself when taken from the class."""
        return self if instance is None else self._function.__get__(instance, owner)

    async def run(self, arguments: Mapping[str, Any], owner: Any = None) -> ToolResult:
        """Call the function with JSON arguments, as a method of `owner` if there is one.

        What it raises, but for a `ToolError`, is logged, and the agent is told no more than that it failed.

        Raises:
            NoResultError: it did not end in time.
            EnvironmentFault: it returned what JSON cannot carry.
        """
        name = self.spec.name
        try:
            values = {key: self._readers[key].validate_python(value) for key, value in arguments.items()}
        except ValidationError as error:
            return ToolResult(error=f"{name}: {error.errors()[0]['msg']}")
        positional = () if owner is None else (owner,)
        try:
            async with asyncio.timeout(self._timeout_s):
                if inspect.iscoroutinefunction(self._function):
                    value = await self._function(*positional, **values)
                else:
                    value = await in_own_thread(self.spec.name, self._function, *positional, **values)
        except ToolError as error:
            return ToolResult(error=legible(str(error)))
        except TimeoutError:
            raise NoResultError("timeout") from None
        except (Exception, SystemExit):  # a tool may not end the run
            logger.exception("tool %s failed on %s", name, dict(arguments))
            return ToolResult(error=f"{name} failed", lasting=False)
        return ToolResult(content=_content(value, name))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *, name: str | None = None, read_only: bool = True, cost: float = 0.0, timeout_s: float = 30.0
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    read_only: bool = True,
    cost: float = 0.0,
    timeout_s: float = 30.0,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a function (or, in a class for `FunctionToolkit`, a method) a tool; see `FunctionTool`."""

    def make(plain: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(plain, name=name, read_only=read_only, cost=cost, timeout_s=timeout_s)

    return make if function is None else make(function)


class FunctionToolkit:
    """Functions as a toolkit.

    Args:
        name: see `Toolkit`.
        tools: functions without state of their own; or a class that is made anew for every episode, with its `Task`, and whose
            methods are tools that share its state.
        varying: see `Toolkit`; 'value' is the field of an answer that is no object.

    Raises:
        ValueError: there is no tool among them, or two have one name.
    """

    def __init__(self, name: str, tools: Sequence[FunctionTool] | type, *, varying: Collection[str] = ()) -> None:
        self.name = name
        self.varying = frozenset(varying)
        self._owner = tools if isinstance(tools, type) else None
        found = [getattr(tools, attribute) for attribute in dir(tools)] if isinstance(tools, type) else tools
        marked = [(item.spec.name, item) for item in found if isinstance(item, FunctionTool)]
        self._tools = named_once(f"tools of toolkit {name!r}", marked)
        if not self._tools:
            raise ValueError(f"toolkit {name!r} has no tool; mark its functions with @tool")

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(item.spec for item in self._tools.values())

    def scope(self, task: Task) -> str:
        return self.name if self._owner is None else f"{self.name} {task.task_id}"

    async def open(self, task: Task) -> FunctionSession:
        return FunctionSession(self._tools, None if self._owner is None else self._owner(task))


class FunctionSession:
    """One episode's functions, with the object whose methods they are."""

    alive = True

    def __init__(self, tools: Mapping[str, FunctionTool], owner: Any) -> None:
        self._tools = tools
        self._owner = owner

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._tools[name].run(arguments, self._owner)

    async def close(self) -> None:
        """Nothing to release."""


def _content(value: Any, name: str) -> Mapping[str, Any]:
    try:
        return as_content(value)
    except NotPlainError as error:
        raise EnvironmentFault(f"tool {name!r} returned a {type(value).__name__} that JSON cannot carry: {error}") from error
