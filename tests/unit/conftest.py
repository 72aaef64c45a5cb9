"""The research family and its tokenizer, built once."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from actors.chat import Chat
from cacherl.environment_settings import EnvSection
from deploy.tiny_model import build_tokenizer
from envs.base import TaskSource
from envs.registry import load_source


@pytest.fixture(scope="session")
def source() -> TaskSource:
    return load_source(EnvSection())


@pytest.fixture(scope="session")
def tokenizer(source: TaskSource) -> PreTrainedTokenizerFast:
    return build_tokenizer(source.vocabulary(), source.tags(), 512)


@pytest.fixture(scope="session")
def chat(tokenizer: PreTrainedTokenizerFast) -> Chat:
    return Chat(tokenizer)
