"""A Python function as a tool: what its schema says, how it is called, and what is wrong with it."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from cacherl.environment_settings import EnvSection, ToolCacheSection
from cacherl.errors import ConfigError, EnvironmentFault
from envs.base import PlannedCall, Task
from envs.live.again import difference
from envs.live.function import FunctionTool, FunctionToolkit, ToolError, tool
from envs.live.source import LiveSource, LiveTask
from envs.observation import NoResultError
from envs.simulator import ToolResult

QUIET = {"transient_failure_rate": 0.0}


@dataclass
class Place:
    city: str
    floor: int = 0


@tool
def convert(amount: float, currency: Literal["EUR", "USD"] = "EUR", places: int | None = None) -> dict[str, Any]:
    """Convert an amount
    to francs.

    Args:
        amount: how much,
            of the currency.
        currency (optional): which one.

    Returns:
        the amount: in francs.
    """
    return {"chf": round(amount * {"EUR": 0.9, "USD": 0.8}[currency], places)}


def run(item: FunctionTool, **arguments: Any) -> ToolResult:
    return asyncio.run(item.run(arguments))


def test_the_schema_comes_from_hints_and_docstring() -> None:
    assert convert.spec.name == "convert"
    assert convert.spec.description == "Convert an amount to francs."
    assert convert.spec.parameters == {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "description": "how much, of the currency."},
            "currency": {"type": "string", "enum": ["EUR", "USD"], "description": "which one.", "default": "EUR"},
            "places": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["amount"],
        "additionalProperties": False,
    }


def test_it_is_called_with_json_and_is_still_a_function() -> None:
    assert run(convert, amount=10) == ToolResult(content={"chf": 9})
    assert convert(10, "USD", places=1) == {"chf": 8.0}


def test_objects_and_lists_are_built_from_json() -> None:
    @tool
    def sum_floors(places: list[Place]) -> int:
        """Add up the floors."""
        return sum(place.floor for place in places)

    assert run(sum_floors, places=[{"city": "a", "floor": 2}, {"city": "b"}]) == ToolResult(content={"value": 2})
    assert "Place" in sum_floors.spec.parameters["$defs"]


def test_coroutines_names_and_costs() -> None:
    @tool(name="wait", read_only=False, cost=2.0)
    async def pause() -> None:
        """Wait."""
        await asyncio.sleep(0)

    assert (pause.spec.name, pause.spec.read_only, pause.spec.cost) == ("wait", False, 2.0)
    assert run(pause) == ToolResult(content={})


def test_errors_on_purpose_are_lasting_and_others_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def divide(a: int, b: int) -> float:
        """Divide."""
        if a < 0:
            raise ToolError("a must not be negative")
        return a / b

    assert run(divide, a=-1, b=1) == ToolResult(error="a must not be negative")
    assert run(divide, a=1, b=0) == ToolResult(error="divide failed", lasting=False)
    assert "ZeroDivisionError" in caplog.text


def test_a_call_that_takes_too_long_gives_no_result() -> None:
    @tool(timeout_s=0.05)
    def sleep() -> None:
        """Sleep."""
        time.sleep(0.3)

    with pytest.raises(NoResultError) as caught:
        run(sleep)
    assert caught.value.kind == "timeout"


def test_a_result_that_is_not_json_is_a_fault_of_the_environment() -> None:
    @tool
    def give() -> object:
        """Give."""
        return {1, 2}

    with pytest.raises(EnvironmentFault, match="tool 'give' returned a set that JSON cannot carry"):
        run(give)


def no_hint(a) -> None:  # type: ignore[no-untyped-def]
    """Doc."""


def no_doc(a: int) -> None: ...


def odd(a: type) -> None:
    """Doc."""


def positional(a: int, /) -> None:
    """Doc."""


def many(*a: int) -> None:
    """Doc."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_hint, "tool 'no_hint': parameter 'a' has no type hint; write a: str"),
        (no_doc, "tool 'no_doc': it has no docstring"),
        (odd, "tool 'odd': parameter 'a' has type <class 'type'>, which JSON cannot carry; use str"),
        (positional, "tool 'positional': parameter 'a' cannot be given by name"),
        (many, "tool 'many': parameter 'a' cannot be given by name"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tool(function)


def test_a_toolkit_without_tools_is_refused() -> None:
    with pytest.raises(ValueError, match="toolkit 'empty' has no tool; mark its functions with @tool"):
        FunctionToolkit("empty", [])


class Counter:
    """Tools of one episode that share a number."""

    opened = 0

    def __init__(self, task: Task) -> None:
        Counter.opened += 1
        self.value = task.seed

    @tool(read_only=False)
    def add(self, amount: int) -> dict[str, int]:
        """Add to the number."""
        self.value += amount
        return {"value": self.value}

    @tool
    def look(self) -> dict[str, int]:
        """Look at the number."""
        return {"value": self.value}


def counter(**cache: Any) -> LiveSource:
    section = EnvSection(levels=(1,), tool_cache=ToolCacheSection(**cache), **QUIET)
    return LiveSource(section, "counter", [FunctionToolkit("counter", Counter)], [LiveTask(prompt="Count.", answer="3")] * 2)


ADD, LOOK = PlannedCall(name="add", arguments={"amount": 1}), PlannedCall(name="look", arguments={})


async def acted(source: LiveSource, calls: list[PlannedCall], task: str = "counter/train/1/0") -> list[tuple[str, str | None]]:
    env = source.make_env()
    await env.reset(source.get(task), rollout_seed=0)
    steps = [await env.step(source.format.render([call])) for call in calls]
    await env.close()
    return [(step.messages[0].content, step.calls[0].tier) for step in steps]


def test_every_episode_has_state_of_its_own() -> None:
    source = counter()

    async def both() -> Any:
        return await asyncio.gather(acted(source, [ADD, ADD, LOOK]), acted(source, [LOOK, ADD]))

    assert asyncio.run(both()) == [
        [('{"value":1}', None), ('{"value":2}', None), ('{"value":2}', None)],
        [('{"value":0}', None), ('{"value":1}', None)],
    ]


def test_a_live_state_is_the_list_of_calls_that_changed_it_and_is_made_up_for() -> None:
    """The second episode is served two changes, and the live world has to make them before it can go on by itself."""
    source = counter(mode="record_replay")
    asyncio.run(acted(source, [ADD, LOOK, ADD]))
    Counter.opened = 0
    again = asyncio.run(acted(source, [ADD, LOOK, ADD]))
    assert (again, Counter.opened) == ([('{"value":1}', "exact"), ('{"value":1}', "exact"), ('{"value":2}', "exact")], 0)
    longer = asyncio.run(acted(source, [ADD, ADD, LOOK, ADD]))
    assert longer == [('{"value":1}', "exact"), ('{"value":2}', "exact"), ('{"value":2}', "live"), ('{"value":3}', "live")]
    assert Counter.opened == 1
    other = asyncio.run(acted(source, [LOOK], "counter/train/1/1"))
    assert other == [('{"value":1}', "live")]  # another task, another world: not the first one's result


def test_a_world_that_does_not_do_again_what_was_recorded_is_a_fault() -> None:
    source = counter(mode="record_replay")
    asyncio.run(acted(source, [ADD]))
    original, Counter.add._function = Counter.add._function, lambda self, amount: {"value": 99}
    try:
        with pytest.raises(EnvironmentFault, match=r"^tool 'add' of toolkit 'counter', .* answered otherwise in 'value': "):
            asyncio.run(acted(source, [ADD, LOOK]))
    finally:
        Counter.add._function = original


@pytest.mark.parametrize(
    ("before", "again", "place"),
    [
        ({"id": 1, "at": "10:00"}, {"id": 1, "at": "10:01"}, None),
        ({"id": 1, "at": "10:00"}, {"id": 1}, None),
        ({"all": [{"at": 1}, {"id": 2}]}, {"all": [{"at": 2}, {"id": 2}]}, None),
        ({"all": [{"at": 1}, {"id": 2}]}, {"all": [{"at": 1}, {"id": 3}]}, "all.1.id"),
        ({"all": [1]}, {"all": [1, 2]}, "all.1"),
        ({"id": 1}, {"id": 1, "name": "x"}, "name"),
        ({"id": 1}, {"id": [1]}, "id"),
        ({"id": None}, {}, "id"),
    ],
)
def test_answers_are_the_same_but_for_the_fields_that_vary(before: Any, again: Any, place: str | None) -> None:
    assert difference(ToolResult(content=before), ToolResult(content=again), varying=["at"]) == place


def test_an_answer_and_an_error_differ_and_two_errors_do_not() -> None:
    answer, failed = ToolResult(content={}), ToolResult(error="failed at 10:00")
    assert difference(answer, failed, varying=[]) == difference(failed, answer, varying=[]) == "error"
    assert difference(failed, ToolResult(error="failed at 10:01"), varying=[]) is None


def test_a_snapshot_of_a_live_episode_resumes() -> None:
    source = counter()

    async def resumed() -> Any:
        env, copy = source.make_env(), source.make_env()
        for each in (env, copy):
            await each.reset(source.get("counter/train/1/0"), rollout_seed=0)
        for _ in range(2):
            await env.step(source.format.render([ADD]))
        copy.restore(env.snapshot())
        assert copy.snapshot() == env.snapshot()
        return [(await each.step(source.format.render([LOOK]))).messages[0].content for each in (env, copy)]

    assert asyncio.run(resumed()) == ['{"value":2}', '{"value":2}']


def test_after_a_failed_change_nothing_is_served_and_nothing_recorded() -> None:
    source = counter(mode="record_replay")
    asyncio.run(acted(source, [ADD, LOOK]))
    original, failures = Counter.add._function, [True]

    def failing(self: Counter, amount: int) -> dict[str, int]:
        value = original(self, amount)
        if amount == 7 and failures.pop():
            raise RuntimeError("after the change was made")
        return value

    Counter.add._function = failing
    seven = PlannedCall(name="add", arguments={"amount": 7})
    try:
        tiers = [tier for _, tier in asyncio.run(acted(source, [ADD, LOOK, seven, LOOK, LOOK]))]
    finally:
        Counter.add._function = original
    assert tiers == ["exact", "exact", "live", "live", "live"]


class Ending(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize(
    "signal", [StopIteration(), SystemExit(2), KeyboardInterrupt(), Ending(), asyncio.CancelledError()], ids=repr
)
def test_a_tool_cannot_end_the_run_or_get_stuck(signal: BaseException) -> None:
    def stop(x: str) -> str:
        """Raise what is no error."""
        raise signal

    begin = time.monotonic()
    assert run(tool(stop), x="") == ToolResult(error="stop failed", lasting=False)
    assert time.monotonic() - begin < 5


def test_a_coroutine_that_exits_is_a_failed_call() -> None:
    @tool
    async def leave(x: str) -> str:
        """Leave."""
        raise SystemExit(x)

    assert run(leave, x="") == ToolResult(error="leave failed", lasting=False)


def test_calls_that_never_return_keep_no_other_one_waiting() -> None:
    forever = threading.Event()

    @tool(timeout_s=0.05)
    def hang(x: str) -> bool:
        """Hang."""
        return forever.wait(60)

    async def hang_often_then_work() -> ToolResult:
        stuck = await asyncio.gather(*(hang.run({"x": ""}) for _ in range(40)), return_exceptions=True)
        assert {type(result) for result in stuck} == {NoResultError}
        return await convert.run({"amount": 10})

    begin = time.monotonic()
    assert asyncio.run(hang_often_then_work()).content == {"chf": 9}
    assert time.monotonic() - begin < 10
    forever.set()


@pytest.mark.parametrize(("given", "shown"), [("a\ud800b", "a?b"), ("\u2028ü😀", "\u2028ü😀")])
def test_what_a_tool_says_is_text_that_can_be_sent(given: str, shown: str) -> None:
    def say(x: str) -> dict[str, str]:
        """Say."""
        if x:
            raise ToolError(given)
        return {given: given}

    assert run(tool(say), x="").content == {shown: shown}
    assert run(tool(say), x="error").error == shown


def _nest(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [_nest(100), _nest(100_000), [float("inf")], {(1, 2): 3}, {1, 2}], ids=["deep", "deeper", "inf", "key", "set"]
)
def test_what_json_cannot_carry_is_named(value: Any) -> None:
    def give(x: str) -> Any:
        """Give."""
        return value

    with pytest.raises(EnvironmentFault, match=r"^tool 'give' returned a (list|dict|set) that JSON cannot carry: "):
        run(tool(give), x="")


def test_names_that_come_twice_are_refused() -> None:
    @tool
    def price(x: str) -> str:
        """Price."""
        return x

    with pytest.raises(ValueError, match=r"^tools of toolkit 'money': the name 'convert' comes twice"):
        FunctionToolkit("money", [convert, convert])
    section = EnvSection(levels=(1,))
    with pytest.raises(ConfigError, match=r"^toolkits: the name 'money' comes twice"):
        LiveSource(section, "x", [FunctionToolkit("money", [convert]), FunctionToolkit("money", [price])], [])


@pytest.mark.parametrize("answer", [3, " 3", "3\n", "[ANSWER] 3", None])
def test_an_answer_that_no_turn_can_state_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="LiveTask answer must be text"):
        LiveTask(prompt="?", answer=answer)
