"""What the first prompt tells a model of its tools: their schemas, and how a call and an answer are written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from actors.chat import Chat
from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from cacherl.trajectory import Message
from envs.answer import render_answer
from envs.base import ActionFormat, PlannedCall, TaskSource, ToolSpec

_TEXT = """You can use tools. Each of these JSON objects describes one:
{schemas}

To call a tool, write exactly in this form:
{call}
Its result comes back to you, and you may call again. To answer, write without any call:
{answer}"""
_PROBE = (Message(role="user", content="a"),)


def briefed_chat(tokenizer: Any, config: RunConfig, source: TaskSource) -> Chat:
    """The chat of a run, whose prompts tell of the tools in the way that `env.briefing` names.

    'auto' tells a tiny model nothing, as it learns its tools from demonstrations, nor any where the prompts tell of the tools
    themselves. Any other model is told by its own chat
    template, if that renders tools and asks for calls in `env.action_format`, else by a system message.

    Raises:
        ConfigError: the tokenizer cannot be used token in, token out; the template renders no tools; there is nothing to tell;
            or a tiny model, which has no words for it, is to be told.
    """
    mode: Literal["auto", "none", "template", "system"] = config.env.briefing
    if config.model.path is None:
        if mode in ("template", "system"):
            raise ConfigError(
                f"env.briefing: {mode!r} needs a real model (model.path): the tiny model knows only the words of its tasks"
            )
        return Chat(tokenizer)
    if mode in ("template", "system") and not source.tools():
        raise ConfigError(f"env.briefing: {mode!r} has nothing to tell: the prompts of {source.family!r} say all; leave 'auto'")
    if mode == "none" or not source.tools():
        return Chat(tokenizer)
    told = Chat(tokenizer, tools=[tool_schema(spec) for spec in source.tools()])
    renders = told.prompt_text(_PROBE) != Chat(tokenizer).prompt_text(_PROBE)
    if mode == "template" and not renders:
        raise ConfigError("env.briefing: the chat template of model.path renders no tools; take 'system'")
    if mode == "template" or (mode == "auto" and renders and _asks_for(source.format, told)):
        return told
    return Chat(tokenizer, preface=system_text(source.tools(), source.format))


def tool_schema(spec: ToolSpec) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def system_text(tools: Sequence[ToolSpec], action_format: ActionFormat) -> str:
    """The system message: schemas, one a line, and the forms of a call, shown on the first tool, and of an answer."""
    example = PlannedCall(name=tools[0].name, arguments=_placeholders(tools[0].parameters))
    return _TEXT.format(
        schemas="\n".join(json.dumps(tool_schema(spec)["function"]) for spec in tools),
        call=action_format.render([example]),
        answer=render_answer("<your answer>"),
    )


def _placeholders(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"<{name}>" for name in parameters.get("properties", {})}


def _asks_for(action_format: ActionFormat, told: Chat) -> bool:
    prompt = told.prompt_text(_PROBE)
    return bool(action_format.tags) and all(tag in prompt for tag in action_format.tags)
