"""What a prompt tells of the tools, and who tells it."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from actors.briefing import briefed_chat
from actors.chat import Chat
from cacherl.config import parse_config
from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from cacherl.trajectory import Message
from envs.adapters.skyrl import skyrl_source
from envs.registry import load_source

_BODY = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
PLAIN = _BODY
#: As Qwen's: tools before the conversation, calls in <tool_call> tags.
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}"
    "as <tool_call>{}</tool_call><|im_end|>\n{% endif %}" + _BODY
)
QUESTION = (Message(role="user", content="Who?"),)


def tokenizer(template: str) -> PreTrainedTokenizerFast:
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    special = ["<|im_start|>", "<|im_end|>", "<unk>"]
    raw = Tokenizer(models.WordLevel({token: at for at, token in enumerate([*special, *characters])}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens(special)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", unk_token="<unk>")
    wrapped.chat_template = template
    return wrapped


def chat(template: str, *, path: str | None = "model", **env: Any) -> Chat:
    config = parse_config({"model": {"path": path}, "env": {"name": "research", **env}})
    return briefed_chat(tokenizer(template), config, load_source(config.env))


def test_a_template_that_asks_for_calls_in_the_format_tells_of_the_tools() -> None:
    told = chat(HERMES, action_format="hermes").prompt_text(QUESTION)
    assert told.startswith("<|im_start|>system\nsearch ")
    assert told.count("<|im_start|>system") == 1


@pytest.mark.parametrize(("template", "form"), [(PLAIN, "hermes"), (HERMES, "cacherl")])
def test_otherwise_a_system_message_does(template: str, form: str) -> None:
    told = chat(template, action_format=form).prompt_text(QUESTION)
    shown = {
        "hermes": '<tool_call>\n{"name":"search","arguments":{"name":"<name>"}}\n</tool_call>',
        "cacherl": "[TOOL_CALL] search {",
    }
    assert shown[form] in told
    assert '{"name": "search", "description": "Find the id of a person\'s document.", "parameters": {' in told
    assert "[ANSWER] <your answer><|im_end|>\n<|im_start|>user\nWho?<|im_end|>" in told


def test_a_task_keeps_its_own_system_message_behind_it() -> None:
    prompt = chat(PLAIN).prompt_text((Message(role="system", content="Be brief."), *QUESTION))
    assert prompt.count("<|im_start|>system") == 1
    assert "<your answer>\n\nBe brief.<|im_end|>" in prompt


def test_what_is_asked_for_is_what_happens_or_is_refused() -> None:
    bare = Chat(tokenizer(HERMES)).prompt_text(QUESTION)
    assert chat(HERMES, action_format="hermes", briefing="none").prompt_text(QUESTION) == bare
    assert "You can use tools." in chat(HERMES, action_format="hermes", briefing="system").prompt_text(QUESTION)
    assert chat(HERMES, briefing="template").prompt_text(QUESTION).startswith("<|im_start|>system\nsearch ")
    with pytest.raises(ConfigError, match=r"env\.briefing: the chat template of model\.path renders no tools; take 'system'"):
        chat(PLAIN, briefing="template")


def test_a_tiny_model_is_told_nothing() -> None:
    assert chat(HERMES, path=None).prompt_text(QUESTION) == Chat(tokenizer(HERMES)).prompt_text(QUESTION)
    with pytest.raises(ConfigError, match=r"env\.briefing: 'system' needs a real model"):
        chat(HERMES, path=None, briefing="system")


def test_prompts_that_tell_of_their_tools_are_left_alone() -> None:
    rows = [{"prompt": [{"role": "user", "content": "Who?"}]}]
    source = skyrl_source(EnvSection(), rows, lambda row: None)
    bare = Chat(tokenizer(HERMES)).prompt_text(QUESTION)
    config = parse_config({"model": {"path": "model"}})
    assert briefed_chat(tokenizer(HERMES), config, source).prompt_text(QUESTION) == bare
    asked = parse_config({"model": {"path": "model"}, "env": {"briefing": "system"}})
    with pytest.raises(ConfigError, match=r"env\.briefing: 'system' has nothing to tell: the prompts of 'skyrl' say all"):
        briefed_chat(tokenizer(HERMES), asked, source)
