"""Chat: messages -> token ids, turn by turn, without ever tokenising a token twice.

The first prompt is rendered whole by the model's chat template. Everything after a completion is rendered as the *difference*
that tool messages make behind a fixed assistant turn, so the tokens already in the trajectory stay untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from cacherl.errors import ConfigError
from cacherl.trajectory import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]


class Chat:
    """Token view of a conversation for one tokenizer.

    Args:
        tokenizer: with a chat template and an end-of-turn token (`eos_token`).
        tools: descriptions that the template renders into every first prompt.
        preface: text that every first prompt's system message begins with.

    Raises:
        ConfigError: no chat template, no eos token, or a template that does not close an assistant turn with it, cannot render
            tool results, or rewrites earlier turns when they follow.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, tools: Sequence[dict[str, Any]] = (), preface: str = "") -> None:
        if not tokenizer.chat_template:
            raise ConfigError("model.path: its tokenizer has no chat template; use an instruct model or add one")
        if tokenizer.eos_token_id is None:
            raise ConfigError("model.path: its tokenizer has no eos_token, so the end of a turn could not be sampled")
        self._tokenizer = tokenizer
        self._tools = list(tools)
        self._preface = preface
        self._special = sorted(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        self.end_of_turn: int = int(tokenizer.eos_token_id)
        base = self._render(_PROBE, generation_prompt=False)
        end = str(tokenizer.eos_token)
        if end not in base:
            raise ConfigError(f"model.path: its chat template does not close an assistant turn with eos_token {end!r}")
        self._base = base[: base.rindex(end) + len(end)]
        self.observation_ids([Message(role="tool", content="a")])

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the first prompt, generation prompt included."""
        return self._encode(self.prompt_text(messages))

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """The first prompt as the template has it."""
        plain = [self._plain(message) for message in messages]
        if self._preface:
            system = plain.pop(0)["content"] if plain[0]["role"] == "system" else ""
            plain.insert(0, {"role": "system", "content": f"{self._preface}\n\n{system}".rstrip()})
        return self._render(plain, generation_prompt=True, tools=self._tools)

    def observation_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids that follow a completion (whose last token is the end of turn) before the next one."""
        text = self._render([*_PROBE, *map(self._plain, messages)], generation_prompt=True)
        if not text.startswith(self._base):
            raise ConfigError("model.path: its chat template rewrites earlier turns, so token-in, token-out is impossible")
        return self._encode(text[len(self._base) :])

    def completion_ids(self, text: str) -> list[int]:
        """Token ids of an assistant turn that a scripted agent wrote, end of turn included."""
        return [*self._encode(text), self.end_of_turn]

    def text(self, token_ids: Sequence[int]) -> str:
        """A completion as text, without its end of turn."""
        ids = token_ids[:-1] if len(token_ids) and token_ids[-1] == self.end_of_turn else token_ids
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _render(
        self, messages: Sequence[dict[str, Any]], *, generation_prompt: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        options = {"tools": tools or None, "add_generation_prompt": generation_prompt}
        try:
            return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(f"model.path: its chat template cannot render messages of roles {roles}: {error}") from error

    def _plain(self, message: Message) -> dict[str, Any]:
        """What the template sees. Text that reads like a special token, as a tool may return it, cannot act as one."""
        content = message.content
        for token in self._special:
            if token in content:
                content = content.replace(token, f"{token[:1]} {token[1:]}")
        fields: dict[str, Any] = {"role": message.role, "content": content}
        return fields if message.name is None else {**fields, "name": message.name}
