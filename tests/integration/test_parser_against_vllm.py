"""vLLM's own parsers, used without a server, read what our formats write, and both read what models write."""

from __future__ import annotations

import json

import pytest

from deploy.tiny_model import build_tokenizer
from envs.base import PlannedCall
from envs.parser import FORMATS

TWO = [
    PlannedCall(name="search", arguments={"name": "velor"}),
    PlannedCall(name="read", arguments={"id": "d1", "list": [1, 2.5, {"x": None}], "text": 'a "quote" and {braces}'}),
]
#: Our format -> vLLM's name of the same.
SAME = {"hermes": "hermes", "llama3": "llama3_json", "mistral": "mistral"}
WRITTEN = [
    ("hermes", 'I look.\n<tool_call>\n{"name": "search", "arguments": {"name": "velor"}}\n</tool_call>'),
    ("hermes", '<tool_call>{"name": "search", "arguments": {"name": "velor"}}'),
    ("llama3", '<|python_tag|>{"name": "search", "parameters": {"name": "velor"}}'),
    ("llama3", '{"name": "a", "arguments": {}}; {"name": "b", "parameters": {"x": {"y": 1}}}'),
    ("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"name": "velor"}}]'),
]


def theirs(name: str, text: str) -> list[tuple[str, object]]:
    from vllm.tool_parsers import ToolParserManager

    tokenizer = build_tokenizer(["a"], FORMATS[name].tags, 64)
    parser = ToolParserManager.get_tool_parser(SAME[name])(tokenizer)
    found = parser.extract_tool_calls(text, None).tool_calls
    return [(call.function.name, json.loads(call.function.arguments)) for call in found]


@pytest.mark.parametrize(("name", "text"), [*WRITTEN, *((name, FORMATS[name].render(TWO)) for name in SAME)])
def test_both_find_the_same_calls(name, text):
    ours = [(call.name, call.arguments) for call in FORMATS[name].parse(text, finish_reason="stop")]
    assert ours
    assert ours == theirs(name, text)
