"""A small Qwen3 with a word-level tokenizer, built on the spot: a policy for machines without a download.

The tokenizer splits text into the environment's tags and alternating runs of word and non-word characters, one token each,
and decodes by plain concatenation, so that decode(encode(text)) == text for every text made of known runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from cacherl.model_settings import TinyModelSection
from envs.base import TaskSource

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
ROLES = ("system", "user", "assistant", "tool")
_RUNS = r"\w+|[^\w]+"

#: Tied embeddings start three times as large as Qwen3's: the model then learns to copy names in half as many updates.
EMBEDDING_SCALE = 3.0

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer(words: Iterable[str], tags: Sequence[str], max_length: int) -> PreTrainedTokenizerFast:
    """Word-level tokenizer that knows exactly `words` (runs) and `tags` (split off first, one token each)."""
    special = [PAD, END, UNKNOWN, *(f"<|{role}|>" for role in ROLES)]
    vocabulary = {token: index for index, token in enumerate([*special, *tags, *sorted(set(words))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_RUNS), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in tags])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def build_tiny_model(directory: Path, source: TaskSource, size: TinyModelSection, *, max_length: int, seed: int) -> None:
    """Write an ordinary Hugging Face folder: randomly initialised (from `seed`) model in float32 and tokenizer."""
    tokenizer = build_tokenizer(source.vocabulary(), source.tags(), max_length)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(EMBEDDING_SCALE)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
