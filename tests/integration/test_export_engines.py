"""An exported checkpoint, also of a LoRA run, is an ordinary model: plain vLLM and plain transformers say the same with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.engine import engine_environment
from cacherl.config import RunConfig, parse_config
from cacherl.environment_settings import EnvSection
from cacherl.model_settings import TinyModelSection
from deploy.checkpoints import CheckpointStore
from deploy.export import export_policy
from deploy.tiny_model import build_tiny_model
from envs.registry import load_source
from learner.checkpoint import take_reports
from learner_data import group, results_of
from replay_service.server import ReplayServer
from replay_service.store import Replay

MAX_LENGTH, NEW_TOKENS, VERSION = 128, 24, 2
PROMPTS = [[5, 9, 12, 30], [7], list(range(20, 60))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export, the rank of the adapter in it, and what vLLM says: greedy tokens and log-probabilities after `PROMPTS`."""

    folder: Path
    lora: int
    tokens: list[list[int]]
    logprobs: list[list[float]]


def configure(lora: int) -> RunConfig:
    return parse_config(
        {
            "rollout": {"group_size": 4},
            "model": {"max_length": MAX_LENGTH, "dtype": "float32"},
            "replay": {"warmup_steps": 0, "update_frequency": 0},
            "checkpoint": {"asynchronous": False},
            "learner": {
                "batch_size": 8,
                "micro_batch_tokens": 1024,
                "lr": 1e-2,
                **({"lora": {"rank": lora}} if lora else {}),
            },
        }
    )


def train(port: int, model: Path, folder: Path, lora: int, results: Any) -> None:
    """Child process: two updates of a learner, and a checkpoint, whose folder is put."""
    from learner.worker import LearnerWorker

    config, rng = configure(lora), np.random.default_rng(0)
    with ReplayServer(folder / "replay") as server:
        with Replay(server.url, "pool", config.replay) as pool:
            for index in range(2):
                pool.push(group(rng, f"g{index}"), priority=1.0)
        worker = LearnerWorker(config, model, replay_url=server.url, replay_namespace="pool", rank=0, world=1, folder=folder)
        worker.setup("127.0.0.1", port, 1)
        for number in range(VERSION):
            worker.update(f"batch-{number}")
        store = CheckpointStore(folder / "checkpoints", keep_last=1, keep_best=0)
        staging = store.stage(VERSION)
        worker.snapshot(staging)
        files = take_reports(staging, 1) or ()
        results.put(store.commit(staging, VERSION, success=None, ledger={}, driver={}, files=files).folder)


def ask_vllm(_: int, folder: Path, results: Any) -> None:
    """Child process: puts (token ids, log-probabilities) after each prompt."""
    os.environ.update(engine_environment(threads=1, kv_cache_gib=1, gpus=0))
    from vllm import LLM, SamplingParams

    llm = LLM(model=str(folder), dtype="float32", max_model_len=MAX_LENGTH, enforce_eager=True)
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, logprobs=0, ignore_eos=True)
    outputs = [one.outputs[0] for one in llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], greedy)]
    tokens = [list(one.token_ids) for one in outputs]
    logprobs = [[at[token].logprob for at, token in zip(one.logprobs, one.token_ids, strict=True)] for one in outputs]
    results.put((tokens, logprobs))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that training began with."""
    directory = tmp_path_factory.mktemp("start") / "model"
    size = TinyModelSection(layers=2, hidden=64, heads=2, intermediate=128)
    build_tiny_model(directory, load_source(EnvSection()), size, max_length=MAX_LENGTH, seed=0)
    return directory


@pytest.fixture(scope="module", params=[pytest.param(0, id="whole", marks=pytest.mark.slow), pytest.param(4, id="lora")])
def exported(request: pytest.FixtureRequest, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("run")
    (checkpoint,) = results_of(train, [start, folder, request.param], 1, timeout_s=300)
    assert export_policy(checkpoint, folder / "exported").version == VERSION
    ((tokens, logprobs),) = results_of(ask_vllm, [folder / "exported"], 1, timeout_s=300)
    return Exported(folder=folder / "exported", lora=request.param, tokens=tokens, logprobs=logprobs)


def test_vllm_and_transformers_agree(exported: Exported) -> None:
    model = AutoModelForCausalLM.from_pretrained(exported.folder, dtype=torch.float32)
    for prompt, tokens, logprobs in zip(PROMPTS, exported.tokens, exported.logprobs, strict=True):
        assert len(tokens) == NEW_TOKENS
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].double()
        assert logits.argmax(-1).tolist() == tokens
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)


def test_it_is_the_trained_model_under_its_own_names(exported: Exported, start: Path) -> None:
    before = AutoModelForCausalLM.from_pretrained(start).state_dict()
    after = AutoModelForCausalLM.from_pretrained(exported.folder).state_dict()
    assert before.keys() == after.keys()
    moved = {key for key, value in after.items() if float((value - before[key]).abs().max()) > 1e-3}
    projections = {key for key in after if key.endswith("_proj.weight")}
    assert moved >= projections
    if exported.lora:
        assert moved == projections  # nothing else has an adapter
    assert AutoTokenizer.from_pretrained(exported.folder).get_vocab() == AutoTokenizer.from_pretrained(start).get_vocab()
