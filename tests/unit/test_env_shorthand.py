"""Calls as a person types them."""

from __future__ import annotations

import pytest

from envs.base import PlannedCall, ToolSpec
from envs.data.simulator import TOOLS
from envs.shorthand import describe_arguments, read_shorthand

MOVE = ToolSpec(
    name="move",
    description="Move.",
    parameters={
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "steps": {"type": "integer"},
            "fast": {"type": "boolean"},
            "via": {"type": ["array", "null"]},
        },
        "required": ["to"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("move", {}),
        ("move to=oslo", {"to": "oslo"}),
        ("move oslo 3", {"to": "oslo", "steps": 3}),
        ('move "north oslo" fast=true', {"to": "north oslo", "fast": True}),
        ("move steps=3 to=7", {"steps": 3, "to": "7"}),
        ("move steps=3 oslo", {"steps": 3, "to": "oslo"}),
        ("move oslo steps=many", {"to": "oslo", "steps": "many"}),
        ('move oslo via=\'["a","b"]\'', {"to": "oslo", "via": ["a", "b"]}),
        ("move oslo x=1", {"to": "oslo", "x": 1}),
        ("move a=b=c", {"a": "b=c"}),
    ],
)
def test_a_line_becomes_a_call(line, arguments):
    assert read_shorthand(line, [*TOOLS, MOVE]) == PlannedCall(name="move", arguments=arguments)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mov oslo", "there is no tool 'mov'; the tools are tables, columns, query, calc, move"),
        ("", "there is no tool ''"),
        ("move a 1 true [] more", "move takes to, steps, fast, via; there is none left for 'more'"),
        ("tables orders", "tables takes no arguments; there is none left for 'orders'"),
        ('move "oslo', "No closing quotation"),
    ],
)
def test_a_line_that_cannot_be_read_is_explained(line, message):
    with pytest.raises(ValueError, match=message):
        read_shorthand(line, [*TOOLS, MOVE])


def test_arguments_are_described_in_a_line():
    assert describe_arguments(MOVE) == "to: string, steps?: integer, fast?: boolean, via?: array | null"
    calc = next(spec for spec in TOOLS if spec.name == "calc")
    assert describe_arguments(calc) == "a: integer, op: add | subtract, b: integer"
    assert describe_arguments(TOOLS[0]) == "none"
