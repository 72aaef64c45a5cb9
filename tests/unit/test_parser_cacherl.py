"""The project's own action text: what is read, what is repaired, what is refused and why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import jsontext, limits
from envs.base import PlannedCall
from envs.parser import PROBLEMS, action_format

FORMAT = action_format("cacherl")


def parse(text: str, finish_reason: str = "stop"):
    return FORMAT.parse(text, finish_reason=finish_reason)


def test_one_call_with_text_around_it():
    (call,) = parse('I look. [TOOL_CALL] search {"name":"velor"} [/TOOL_CALL] Then I see.')
    assert (call.name, call.arguments, call.problem, call.repairs) == ("search", {"name": "velor"}, None, ())


def test_several_calls_keep_their_order():
    text = '[TOOL_CALL] a {"x":1} [/TOOL_CALL]\n[TOOL_CALL] b {} [/TOOL_CALL]'
    assert [(call.name, call.arguments) for call in parse(text)] == [("a", {"x": 1}), ("b", {})]


def test_text_without_markup_holds_no_call():
    assert parse('{"name":"velor"} [ANSWER] velor') == ()


def test_tags_inside_of_strings_do_not_end_a_call():
    arguments = {"note": "[/TOOL_CALL] and [TOOL_CALL] are tags"}
    (call,) = parse(FORMAT.render([PlannedCall(name="write", arguments=arguments)]))
    assert call.arguments == arguments


@pytest.mark.parametrize(
    ("body", "arguments", "repair"),
    [
        ('search {{"name":"velor"}}', {"name": "velor"}, "double_brace"),
        ('search {"name":"velor"', {"name": "velor"}, "missing_brace"),
        ('search ```json\n{"name":"velor"}\n```', {"name": "velor"}, "code_fence"),
        (r'search "{\"name\":\"velor\"}"', {"name": "velor"}, "string_arguments"),
    ],
)
def test_white_listed_repairs_are_made_and_recorded(body, arguments, repair):
    (call,) = parse(f"[TOOL_CALL] {body} [/TOOL_CALL]")
    assert (call.arguments, call.problem, call.repairs) == (arguments, None, (repair,))


def test_an_unclosed_call_is_repaired_only_when_the_model_had_finished():
    text = '[TOOL_CALL] search {"name":"velor"}'
    (finished,) = parse(text, "stop")
    assert (finished.arguments, finished.repairs) == ({"name": "velor"}, ("unclosed_tag",))
    (cut,) = parse(text, "length")
    assert (cut.name, cut.arguments, cut.problem) == ("search", {}, limits.UNCLOSED)


def test_an_opening_tag_ends_an_unclosed_call():
    first, second = parse('[TOOL_CALL] a {"x":1} [TOOL_CALL] b {} [/TOOL_CALL]')
    assert (first.name, first.arguments, first.repairs) == ("a", {"x": 1}, ("unclosed_tag",))
    assert (second.name, second.problem) == ("b", None)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", limits.NO_NAME),
        ('{"name":"velor"}', limits.NO_NAME),
        ("search", jsontext.NOT_OBJECT),
        ("search [1]", jsontext.NOT_OBJECT),
        ("search {name:velor}", jsontext.NOT_JSON),
        ('search {"name":}', jsontext.NOT_JSON),
        ('search "{name}"', jsontext.NOT_JSON),
        ('search "velor"', jsontext.NOT_OBJECT),
        ('search {"name":"a","name":"b"}', jsontext.DUPLICATE),
        ('search {"x":NaN}', jsontext.NOT_FINITE),
        ('search {"x":-Infinity}', jsontext.NOT_FINITE),
        ('search {"x":1e999}', jsontext.NOT_FINITE),
        ('search {"x":9223372036854775808}', jsontext.TOO_LARGE),
        ('search {"x":' + "9" * 5000 + "}", jsontext.TOO_LARGE),
        ('search {"x":"\\ud800"}', jsontext.NOT_TEXT),
        ('search {"x":1} {"y":2}', jsontext.TRAILING),
        ('search {"x":' + "[" * 20 + "]" * 20 + "}", jsontext.TOO_DEEP),
        ('search {"x":' + "[" * 4000 + "]" * 4000 + "}", jsontext.TOO_DEEP),
        ('search {"x":"' + "a" * limits.MAX_CALL_CHARS + '"}', limits.CALL_TOO_LONG),
    ],
)
def test_refused_calls_say_why(body, problem):
    (call,) = parse(f"[TOOL_CALL] {body} [/TOOL_CALL]")
    assert (call.problem, call.arguments) == (problem, {})


def test_a_stray_closing_tag_is_a_failed_call_and_no_answer():
    (call,) = parse("[ANSWER] velor [/TOOL_CALL]")
    assert call.problem == limits.UNOPENED


def test_calls_beyond_the_cap_become_one_problem():
    calls = parse("[TOOL_CALL] a {} [/TOOL_CALL]" * 50)
    assert [call.problem for call in calls] == [None] * limits.MAX_CALLS + [limits.TOO_MANY]


_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_VALUES = st.recursive(
    _SCALARS | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.from_regex(r"[a-z_]\w{0,8}", fullmatch=True), st.dictionaries(_TEXT, _VALUES, max_size=3))))
def test_what_is_rendered_is_read_back(calls):
    planned = [PlannedCall(name=name, arguments=arguments) for name, arguments in calls[: limits.MAX_CALLS]]
    read = parse(FORMAT.render(planned))
    assert [(call.name, call.arguments, call.problem, call.repairs) for call in read] == [
        (call.name, call.arguments, None, ()) for call in planned
    ]


_FRAGMENTS = st.sampled_from(
    [
        "[TOOL_CALL]",
        "[/TOOL_CALL]",
        "search",
        " ",
        "{",
        "}",
        '"',
        '"name"',
        ":",
        ",",
        "[",
        "]",
        "\\",
        "```",
        "NaN",
        "1e999",
        "\n",
    ]
)


@given(st.lists(_FRAGMENTS | _TEXT, max_size=60).map("".join), st.sampled_from(["stop", "length", "abort"]))
def test_any_text_gives_calls_or_problems_and_never_raises(text, finish_reason):
    calls = parse(text, finish_reason)
    assert len(calls) <= limits.MAX_CALLS + 1
    assert bool(calls) == ("[TOOL_CALL]" in text or "[/TOOL_CALL]" in text)
    for call in calls:
        assert call.problem is None or (call.problem in PROBLEMS and call.arguments == {})
        assert set(call.repairs) <= set(jsontext.REPAIRS)
        json.dumps(call.arguments, allow_nan=False).encode()


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match=r"env\.action_format must be one of cacherl, hermes, llama3, mistral, got 'xml'"):
        action_format("xml")
