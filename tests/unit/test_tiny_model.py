"""The model built on the spot: an ordinary Hugging Face folder whose tokenizer loses nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from actors.chat import Chat
from cacherl.environment_settings import EnvSection
from cacherl.model_settings import TinyModelSection
from deploy.tiny_model import build_tiny_model
from envs.agents import OracleAgent, RandomAgent
from envs.base import TaskSource
from envs.episode import play
from envs.registry import load_source

SIZE = TinyModelSection(layers=2, hidden=32, heads=2, intermediate=48)


def build(directory: Path, source: TaskSource, seed: int) -> Path:
    build_tiny_model(directory, source, SIZE, max_length=128, seed=seed)
    return directory


async def test_every_text_of_an_episode_round_trips(source: TaskSource, tokenizer: PreTrainedTokenizerFast) -> None:
    stormy = load_source(EnvSection(transient_failure_rate=0.5))
    rng = random.Random(0)
    texts: set[str] = set()
    for split in ("train", "val", "comp", "deep"):
        for level in stormy.levels(split):
            for seed in range(10):
                task = stormy.sample(rng, split=split, level=level)
                for agent in (OracleAgent(stormy), RandomAgent(stormy, seed=seed)):
                    episode = await play(stormy.make_env(), task, agent, rollout_seed=seed, max_turns=30)
                    texts |= {m.content for m in episode.messages if m.role != "assistant" or isinstance(agent, OracleAgent)}
    assert sum(text.startswith('{"error"') for text in texts) >= 5
    assert len(texts) > 300
    for text in texts:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids


def test_tags_and_roles_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    text = '<|user|>[TOOL_CALL] read {"id":"d1"} [/TOOL_CALL]<|end|>'
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == [
        "<|user|>",
        "[TOOL_CALL]",
        " ",
        "read",
        ' {"',
        "id",
        '":"',
        "d1",
        '"} ',
        "[/TOOL_CALL]",
        "<|end|>",
    ]


def test_what_is_not_in_the_vocabulary_is_one_unknown_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.encode("xylophone") == [tokenizer.unk_token_id]


def test_it_is_an_ordinary_folder(tmp_path: Path, source: TaskSource, tokenizer: PreTrainedTokenizerFast) -> None:
    directory = build(tmp_path, source, seed=0)
    model, loaded = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(loaded) == len(tokenizer)
    assert (model.config.eos_token_id, model.config.pad_token_id) == (loaded.eos_token_id, loaded.pad_token_id)
    assert (model.config.max_position_embeddings, loaded.model_max_length) == (128, 128)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    prompt = source.get("research/train/2/3").messages
    ids = Chat(loaded).prompt_ids(prompt)
    assert ids == Chat(tokenizer).prompt_ids(prompt)
    logits = model(torch.tensor([ids])).logits
    assert logits.shape == (1, len(ids), len(tokenizer))
    assert torch.isfinite(logits).all()


def test_the_seed_fixes_the_weights_and_leaves_the_generator_alone(tmp_path: Path, source: TaskSource) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (
        AutoModelForCausalLM.from_pretrained(build(tmp_path / name, source, seed)).state_dict()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("size", [SIZE, TinyModelSection()])
def test_its_size_is_the_configured_one(size: TinyModelSection, tmp_path: Path, source: TaskSource) -> None:
    build_tiny_model(tmp_path, source, size, max_length=64, seed=0)
    config = AutoModelForCausalLM.from_pretrained(tmp_path).config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (
        size.layers,
        size.hidden,
        size.intermediate,
    )
    assert (config.num_attention_heads, config.head_dim) == (size.heads, size.hidden // size.heads)
