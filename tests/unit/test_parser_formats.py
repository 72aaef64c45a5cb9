"""The models' own action texts: what each reads, repairs and refuses; properties that all formats share."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import jsontext, limits
from envs.base import PlannedCall
from envs.parser import FORMATS, PROBLEMS

SEARCH = PlannedCall(name="search", arguments={"name": "velor"})
READ = PlannedCall(name="read", arguments={"id": "d1", "field": "boss"})


def parse(name: str, text: str, finish_reason: str = "stop"):
    return FORMATS[name].parse(text, finish_reason=finish_reason)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "cacherl",
            '[TOOL_CALL] search {"name":"velor"} [/TOOL_CALL]\n[TOOL_CALL] read {"id":"d1","field":"boss"} [/TOOL_CALL]',
        ),
        (
            "hermes",
            '<tool_call>\n{"name":"search","arguments":{"name":"velor"}}\n</tool_call>\n'
            '<tool_call>\n{"name":"read","arguments":{"id":"d1","field":"boss"}}\n</tool_call>',
        ),
        ("llama3", '{"name":"search","parameters":{"name":"velor"}}; {"name":"read","parameters":{"id":"d1","field":"boss"}}'),
        (
            "mistral",
            '[TOOL_CALLS][{"name":"search","arguments":{"name":"velor"}},{"name":"read","arguments":{"id":"d1","field":"boss"}}]',
        ),
    ],
)
def test_the_text_of_two_calls(name, text):
    assert FORMATS[name].render([SEARCH, READ]) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", 'Let me see. <tool_call>{"name": "search", "arguments": {"name": "velor"}}</tool_call> Done.'),
        ("hermes", '<tool_call>{"id": "c1", "type": "function", "name": "search", "arguments": {"name": "velor"}}</tool_call>'),
        ("llama3", '<|python_tag|>{"name": "search", "parameters": {"name": "velor"}}'),
        ("llama3", 'I search. <|python_tag|>{"name": "search", "parameters": {"name": "velor"}}'),
        ("llama3", '{"name": "search", "arguments": {"name": "velor"}}'),
        ("mistral", 'I search. [TOOL_CALLS] [{"name": "search", "arguments": {"name": "velor"}, "id": "abc123def"}]'),
        ("mistral", '[TOOL_CALLS]search{"name": "velor"}'),
        ("mistral", '[TOOL_CALLS]search[ARGS]{"name": "velor"}'),
    ],
)
def test_variants_that_models_write_are_read_without_repair(name, text):
    (call,) = parse(name, text)
    assert (call.name, call.arguments, call.problem, call.repairs) == ("search", {"name": "velor"}, None, ())


def test_newer_mistral_models_repeat_the_tag():
    calls = parse("mistral", '[TOOL_CALLS]search{"name":"velor"}[TOOL_CALLS]read{"id":"d1","field":"boss"}')
    assert [(call.name, call.arguments) for call in calls] == [(c.name, c.arguments) for c in (SEARCH, READ)]


@pytest.mark.parametrize(
    ("name", "text", "repairs"),
    [
        ("hermes", '<tool_call>{"name":"search","parameters":{"name":"velor"}}</tool_call>', ("parameters",)),
        ("hermes", '<tool_call>{"name":"search","arguments":{"name":"velor"}</tool_call>', ("missing_brace",)),
        ("hermes", '<tool_call>{{"name":"search","arguments":{"name":"velor"}}}</tool_call>', ("double_brace",)),
        ("hermes", '<tool_call>```json\n{"name":"search","arguments":{"name":"velor"}}\n```</tool_call>', ("code_fence",)),
        ("hermes", '<tool_call>{"name":"search","arguments":"{\\"name\\":\\"velor\\"}"}</tool_call>', ("string_arguments",)),
        ("hermes", '<tool_call>{"name":"search","arguments":{"name":"velor"}}', ("unclosed_tag",)),
        ("llama3", '{"name":"search","parameters":{"name":"velor"}', ("missing_brace",)),
        ("llama3", '```json\n{"name":"search","parameters":{"name":"velor"}}\n```', ("code_fence",)),
        ("mistral", '[TOOL_CALLS][{"name":"search","parameters":{"name":"velor"}}]', ("parameters",)),
        ("mistral", '[TOOL_CALLS]search{"name":"velor"', ("missing_brace",)),
    ],
)
def test_repairs_are_recorded(name, text, repairs):
    (call,) = parse(name, text)
    assert (call.name, call.arguments, call.problem, call.repairs) == ("search", {"name": "velor"}, None, repairs)


@pytest.mark.parametrize(
    ("name", "text", "finish_reason", "problem"),
    [
        ("hermes", '<tool_call>{"name":"search","arguments":{}}', "length", limits.UNCLOSED),
        ("hermes", '<tool_call>{"name":"search"}</tool_call>', "stop", limits.ENVELOPE),
        ("hermes", '<tool_call>{"arguments":{}}</tool_call>', "stop", limits.ENVELOPE),
        ("hermes", '<tool_call>{"name":7,"arguments":{}}</tool_call>', "stop", limits.ENVELOPE),
        ("hermes", '<tool_call>{"name":"a","arguments":{},"parameters":{}}</tool_call>', "stop", limits.ENVELOPE),
        ("hermes", '<tool_call>{"name":"a","arguments":{},"run":"rm"}</tool_call>', "stop", limits.ENVELOPE),
        ("hermes", '<tool_call>{"name":"a","arguments":[1]}</tool_call>', "stop", jsontext.NOT_OBJECT),
        ("hermes", '<tool_call>{"name":"a","arguments":{"x":NaN}}</tool_call>', "stop", jsontext.NOT_FINITE),
        ("hermes", '<tool_call>{"name":"a","name":"b","arguments":{}}</tool_call>', "stop", jsontext.DUPLICATE),
        ("hermes", '<tool_call>{"name":"a","arguments":{}}{"name":"b","arguments":{}}</tool_call>', "stop", jsontext.TRAILING),
        ("hermes", "[ANSWER] velor</tool_call>", "stop", limits.UNOPENED),
        ("llama3", '{"name":"search","parameters":{"name":"velor"}', "length", limits.UNCLOSED),
        ("llama3", '{"name":"search","parameters":{}} and so on', "stop", jsontext.TRAILING),
        ("llama3", '{"answer":"velor"}', "stop", limits.ENVELOPE),
        ("llama3", "<|python_tag|>print(1)", "stop", jsontext.NOT_OBJECT),
        ("mistral", '[TOOL_CALLS][{"name":"search","argum', "length", limits.UNCLOSED),
        ("mistral", '[TOOL_CALLS][{"name":"search","argum', "stop", jsontext.NOT_JSON),
        ("mistral", "[TOOL_CALLS][1]", "stop", jsontext.NOT_OBJECT),
        ("mistral", "[TOOL_CALLS][]", "stop", limits.NO_NAME),
        ("mistral", "[TOOL_CALLS]", "stop", limits.NO_NAME),
        ("mistral", '[TOOL_CALLS]search{"name":"velor"', "length", limits.UNCLOSED),
    ],
)
def test_refused_calls_say_why(name, text, finish_reason, problem):
    (call,) = parse(name, text, finish_reason)
    assert (call.problem, call.arguments, call.repairs) == (problem, {}, ())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", ["[ANSWER] velor", "", "The name is {velor}.", "[TOOL] [ANSWER] velor"])
def test_text_without_markup_is_an_answer(name, text):
    assert parse(name, text) == ()


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_CALLS = st.lists(
    st.builds(
        PlannedCall,
        name=st.from_regex(r"[a-z_][a-z_0-9]{0,8}", fullmatch=True),
        arguments=st.dictionaries(_TEXT, _VALUES, max_size=3),
    ),
    min_size=1,
    max_size=limits.MAX_CALLS,
)


@pytest.mark.parametrize("name", FORMATS)
@given(calls=_CALLS)
def test_what_is_rendered_is_read_back(name, calls):
    read = parse(name, FORMATS[name].render(calls))
    assert [(call.name, call.arguments, call.problem, call.repairs) for call in read] == [
        (call.name, call.arguments, None, ()) for call in calls
    ]


_FRAGMENTS = st.sampled_from(
    [tag for action_format in FORMATS.values() for tag in action_format.tags]
    + ["search", "name", "arguments", "parameters", " ", "{", "}", '"', ":", ",", "[", "]", ";", "\\", "```", "NaN", "\n"]
    + ['{"name":"a","arguments":{}}', '"x"']
)


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.lists(_FRAGMENTS | _TEXT, max_size=40).map("".join), finish_reason=st.sampled_from(["stop", "length", "abort"]))
def test_any_text_gives_calls_or_problems_and_never_raises(name, text, finish_reason):
    calls = parse(name, text, finish_reason)
    assert len(calls) <= limits.MAX_CALLS + 1
    for call in calls:
        assert call.problem is None or (call.problem in PROBLEMS and call.arguments == {} and call.repairs == ())
        assert set(call.repairs) <= set(jsontext.REPAIRS)
        json.dumps(call.arguments, allow_nan=False).encode()
    if finish_reason != "stop":
        assert not any("unclosed_tag" in call.repairs for call in calls)
    if any(tag in text for tag in FORMATS[name].tags):
        assert calls


@pytest.mark.parametrize(
    ("name", "call"),
    [("cacherl", '[TOOL_CALL] a {"x":"'), ("hermes", "<tool_call>{"), ("llama3", '{"name":"a","parameters":{}};')],
)
def test_a_flood_of_calls_is_not_read_to_its_end(name, call):
    begin = time.process_time()
    assert parse(name, call * 40_000)[limits.MAX_CALLS].problem == limits.TOO_MANY
    assert time.process_time() - begin < 0.5
