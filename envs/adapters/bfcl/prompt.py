"""How a BFCL task is put to the agent: instructions, the documents of its tools, and tools that are offered later."""

from __future__ import annotations

from collections.abc import Iterable

from cacherl.trajectory import Message
from envs.adapters.bfcl.package import Entry, tool_specs
from envs.base import ActionFormat, PlannedCall, ToolSpec
from envs.jsontext import compact

_INSTRUCTIONS = (
    "You are an expert in composing functions. You are given a question and a set of possible functions. Based on the "
    "question, you will need to make one or more function calls to achieve the purpose. If none of the functions can be "
    "used, or the question lacks a parameter that a function requires, point it out.\n\n"
    "Write a call as {example}.\n\n"
    "At each turn, you should try your best to complete the tasks requested by the user within the current turn. Continue "
    "to call functions until you have fulfilled the user's request. Once you say something without a call, the turn is over."
)
_MORE = "I have updated some more functions you can choose from. What about now?"


def first_messages(entry: Entry, action_format: ActionFormat) -> tuple[Message, ...]:
    """The prompt: system and user."""
    example = action_format.render([PlannedCall(name="function_name", arguments={"argument": "value"})])
    later = {name for names in entry.withheld.values() for name in names}
    offered = [spec for spec in specs_of(entry) if spec.name not in later | entry.excluded]
    system = f"{_INSTRUCTIONS.format(example=example)}\n\n{_documents(offered)}"
    return Message(role="system", content=system), Message(role="user", content=entry.questions[0])


def offer(entry: Entry, turn: int) -> str | None:
    """What the user says in a turn that offers functions withheld so far; None: it offers none."""
    names = entry.withheld.get(turn)
    if names is None:
        return None
    return f"{_documents(spec for spec in specs_of(entry) if spec.name in names)}\n\n{_MORE}"


def specs_of(entry: Entry) -> list[ToolSpec]:
    """All tools of a task's APIs."""
    return [spec for name in entry.classes for spec in tool_specs(name).values()]


def _documents(specs: Iterable[ToolSpec]) -> str:
    rows = [{"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)} for spec in specs]
    return f"Functions:\n{compact(rows)}"
