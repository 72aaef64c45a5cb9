"""Chat transcripts with tool calls, as trajectories to imitate.

A file of JSON lines, one conversation each, in the form that chat APIs use::

    {"messages": [
        {"role": "system", "content": "..."}, {"role": "user", "content": "..."},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "search", "arguments": "{\"q\": 1}"}}]},
        {"role": "tool", "name": "search", "content": "..."},
        {"role": "assistant", "content": "..."}],
     "tools": [...]}

Every assistant message is imitated, its calls written in the run's own form; all other tokens are what the chat template makes
of them. `tools` (JSON schemas, rendered by the template) may be left out. A call may have an `id` and its result the
`tool_call_id` instead of a name; content may also be a list of parts of type 'text'.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from actors.chat import Chat
from cacherl.errors import ConfigError
from cacherl.policy import FIRST_VERSION
from cacherl.trajectory import NO_VERSION, Message, Role, Status, Trajectory, Turn
from envs.base import ActionFormat, PlannedCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_ASSISTANT = "assistant"


def read_transcripts(
    path: Path, tokenizer: PreTrainedTokenizerBase, calls: ActionFormat, *, max_length: int, limit: int
) -> list[Trajectory]:
    """The first `limit` conversations of a file that are at most `max_length` tokens long.

    Args:
        calls: how tool calls are written.

    Raises:
        ConfigError: the file cannot be read, a line is not such a conversation, or none is short enough; names the line.
    """
    plain = Chat(tokenizer)
    kept: list[Trajectory] = []
    too_long = 0
    for number, record in _records(path):
        if len(kept) == limit:
            break
        try:
            chat = Chat(tokenizer, tools=record["tools"]) if record.get("tools") else plain
            trajectory = _trajectory(record, f"{path.name}-{number}", chat, calls)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"warm_start.path: {path} line {number} is not a conversation: {error!r:.200}") from error
        if len(trajectory) <= max_length:
            kept.append(trajectory)
        else:
            too_long += 1
    if too_long:
        logger.warning("%s: %d conversations exceed model.max_length %d and are left out", path, too_long, max_length)
    if not kept:
        raise ConfigError(f"warm_start.path: {path} has no conversation of at most model.max_length {max_length} tokens")
    return kept


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parsed(line, f"{path} line {number}")
    except OSError as error:
        raise ConfigError(f"warm_start.path: {path} cannot be read ({error})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"warm_start.path: {path} is not a file of JSON lines: {error}") from None


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"warm_start.path: {where} is not JSON: {error}") from None


def _trajectory(record: Mapping[str, Any], name: str, chat: Chat, calls: ActionFormat) -> Trajectory:
    messages = _named(record["messages"])
    first = next((place for place, message in enumerate(messages) if message["role"] == _ASSISTANT), None)
    if not first:
        raise ValueError("it has no assistant message" if first is None else "nothing comes before its first assistant message")
    ids = chat.prompt_ids([_message(message) for message in messages[:first]])
    mask, turns = [False] * len(ids), []
    while first < len(messages):
        text = _text(messages[first], calls)
        after = next((place for place in range(first + 1, len(messages)) if messages[place]["role"] == _ASSISTANT), None)
        answers = [_message(message) for message in messages[first + 1 : after]] if after is not None else []
        completion, observation = chat.completion_ids(text), chat.observation_ids(answers) if after is not None else []
        start, middle = len(ids), len(ids) + len(completion)
        turns.append(Turn(completion=(start, middle), observation=(middle, middle + len(observation)), text=text))
        ids += [*completion, *observation]
        mask += [True] * len(completion) + [False] * len(observation)
        first = len(messages) if after is None else after
    sampled = np.array(mask, dtype=np.bool_)
    return Trajectory(
        trajectory_id=name,
        task_id=name,
        family="transcript",
        level=0,
        split="train",
        token_ids=np.array(ids, dtype=np.int32),
        loss_mask=sampled,
        rollout_logprobs=np.zeros(len(ids), dtype=np.float32),
        policy_versions=np.where(sampled, FIRST_VERSION, NO_VERSION).astype(np.int32),
        temperature=1.0,
        turns=tuple(turns),
        rewards={},
        outcome=1.0,
        status=Status(kind="terminated"),
        task_seed=0,
        rollout_seed=0,
        source="demonstration",
    )


def _named(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, tool results by the name of the call that they answer where only its id says which."""
    names: dict[str, str] = {}
    named: list[Mapping[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        names |= {call["id"]: call.get("function", call)["name"] for call in calls if call.get("id") is not None}
        answered = message.get("tool_call_id")
        if names and answered is not None and answered not in names:
            raise ValueError(f"tool_call_id {answered!r} is the id of no call before it")
        named.append({**message, "name": message.get("name") or names[answered]} if answered in names else message)
    return named


def _message(message: Mapping[str, Any]) -> Message:
    if message["role"] not in get_args(Role):
        raise ValueError(f"role {message['role']!r} is none of {', '.join(get_args(Role))}")
    return Message(role=message["role"], content=_content(message["content"]), name=message.get("name"))


def _content(content: Any) -> str:
    """Text, given as such or in parts of type 'text'."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        return "".join(part["text"] for part in content)
    raise ValueError(f"content {content!r:.80} is neither text nor parts of type 'text'")


def _text(message: Mapping[str, Any], calls: ActionFormat) -> str:
    """An assistant message as the policy would have written it."""
    planned = [_call(call.get("function", call)) for call in message.get("tool_calls") or ()]
    parts = [_content(message.get("content") or ""), calls.render(planned) if planned else ""]
    return "\n".join(part for part in parts if part)


def _call(call: Mapping[str, Any]) -> PlannedCall:
    arguments = call["arguments"]
    return PlannedCall(name=call["name"], arguments=json.loads(arguments) if isinstance(arguments, str) else dict(arguments))
