"""Validation of arguments, and messages that say what to change."""

from __future__ import annotations

import pytest

from envs.base import ToolSpec
from envs.schema import Toolbox

BOOK = ToolSpec(
    name="book",
    description="Book a flight.",
    parameters={
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "seats": {"type": "integer", "minimum": 1},
            "class": {"type": "string", "enum": ["first", "second"]},
        },
        "required": ["id", "seats"],
        "additionalProperties": False,
    },
)
NOW = ToolSpec(
    name="now", description="The time.", parameters={"type": "object", "properties": {}, "additionalProperties": False}
)
BOX = Toolbox([BOOK, NOW])


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("book", {"id": "f1", "seats": 2}, None),
        ("now", {}, None),
        ("book", {"id": "f1"}, "book needs id and seats"),
        ("book", {"id": 7, "seats": 2}, "id must be string"),
        ("book", {"id": "f1", "seats": True}, "seats must be integer"),
        ("book", {"id": "f1", "seats": 0}, "seats must satisfy minimum 1"),
        ("book", {"id": "f1", "seats": 2, "class": "third"}, "class must be first or second"),
        ("book", {"id": "f1", "seats": 2, "secret": 1}, "book takes only id, seats and class"),
        ("now", {"secret": 1}, "now takes only nothing"),
    ],
)
def test_arguments_are_checked(name, arguments, problem):
    assert BOX.problem(name, arguments) == problem
    assert problem is None or problem in set(BOX.messages())


ORDER = ToolSpec(
    name="order",
    description="Order something.",
    parameters={
        "type": "object",
        "properties": {
            "item": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
                "required": ["name", "count"],
                "additionalProperties": False,
            },
            "gift": {"anyOf": [{"enum": ["red", "blue"]}, {"type": "null"}]},
        },
        "required": ["item"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"item": {"name": "pen"}}, "item needs name and count"),
        ({"item": {"name": "pen", "count": 1, "size": 2}}, "item takes only name and count"),
        ({"item": {"name": "pen", "count": "many"}}, "item count must be integer or null"),
        ({"item": {"name": "pen", "count": None}, "gift": "green"}, "gift must be red, blue or null"),
        ({}, "order needs item"),
    ],
)
def test_what_is_wrong_within_an_argument_is_said_of_it(arguments, problem):
    assert Toolbox([ORDER]).problem("order", arguments) == problem


def test_an_unknown_tool_is_answered_with_the_known_ones():
    assert "fly" not in BOX
    assert BOX.unknown == "unknown tool, use book or now"
    assert BOX.unknown in set(BOX.messages())


def test_tool_names_are_unique():
    with pytest.raises(ValueError, match=r"unique, got \['now', 'now'\]"):
        Toolbox([NOW, NOW])


def test_a_tool_must_be_closed_to_further_arguments():
    with pytest.raises(ValueError, match="tool 'open': parameters must have type 'object' and additionalProperties false"):
        ToolSpec(name="open", description="", parameters={"type": "object"})
