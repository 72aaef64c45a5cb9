"""The real vLLM engine: seeded sampling, log-probabilities, and weights swapped under running requests."""

from __future__ import annotations

import asyncio
import gc
import os
import zlib
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import actors.engine as engine_module
from actors.engine import Engine, EngineSettings, engine_environment
from actors.policy import Completion, Sampling
from actors.weights import StagedWeights
from cacherl.environment_settings import EnvSection
from cacherl.model_settings import TinyModelSection
from cacherl.policy import TensorSpec, WeightManifest
from deploy.tiny_model import build_tiny_model
from envs.registry import load_source

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_LENGTH = 256
SAMPLING = Sampling(temperature=0.7, max_new_tokens=24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("engine") / "model"
    size = TinyModelSection(layers=2, hidden=64, heads=2, intermediate=128)
    build_tiny_model(directory, load_source(EnvSection()), size, max_length=MAX_LENGTH, seed=0)
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> Any:
    os.environ.update(engine_environment(threads=1, kv_cache_gib=1, gpus=0))
    engine = await Engine.start(
        EngineSettings(
            model=folder,
            dtype="float32",
            max_length=MAX_LENGTH,
            max_sequences=64,
            end_of_turn=AutoTokenizer.from_pretrained(folder).eos_token_id,
            gpus=0,
            gpu_memory_utilization=0.8,
            seed=0,
        )
    )
    yield engine
    engine.close()


def socket_folders() -> set[Path]:
    """Folders in which open sockets of engines were named."""
    names = (line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines())
    return {Path(name).parent for name in names if "/cacherl-vllm-" in name}


def logprobs(model: torch.nn.Module, prefix: list[int], completion: Completion) -> np.ndarray:
    """The completion's log-probabilities under `model`, at the sampling temperature."""
    tokens = torch.tensor([prefix + completion.token_ids.tolist()])
    with torch.no_grad():
        logits = model(tokens).logits[0, len(prefix) - 1 : -1].double() / SAMPLING.temperature
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion.token_ids.tolist())[:, None])
    return chosen[:, 0].numpy()


def manifest_of(model: torch.nn.Module, version: int) -> tuple[WeightManifest, np.ndarray]:
    """The model's weights as a published version; the output layer is tied and not listed."""
    specs, parts, offset = [], [], 0
    for name, tensor in model.named_parameters():
        data = tensor.detach().numpy().tobytes()
        specs.append(TensorSpec(name=name, dtype="float32", shape=tuple(tensor.shape), offset=offset, nbytes=len(data)))
        parts.append(data)
        offset += len(data)
    buffer = np.frombuffer(b"".join(parts), dtype=np.uint8)
    manifest = WeightManifest(version=version, tensors=tuple(specs), nbytes=offset, checksum=f"{zlib.crc32(buffer.data):08x}")
    return manifest, buffer


async def test_a_running_engine_has_no_names_that_a_kill_would_leave_behind(engine: Engine) -> None:
    """Of its sockets; it answers all the same."""
    folders = socket_folders()
    assert folders
    assert not any(folder.exists() for folder in folders)
    assert "VLLM_RPC_BASE_PATH" not in os.environ, "a process that starts later would look for the folder"
    assert len((await engine.complete([5, 9, 12], SAMPLING, seed=1)).token_ids) > 0


async def test_no_frame_of_its_start_holds_an_engine(engine: Engine) -> None:
    """Such a frame may be kept for ever, and vLLM's object with it, beyond the engine's close."""
    frames = [holder for holder in gc.get_referrers(engine) if isinstance(holder, FrameType)]
    assert not [frame for frame in frames if frame.f_code.co_filename == engine_module.__file__]


async def test_a_seed_fixes_the_draw(engine: Engine) -> None:
    first, again, other = [await engine.complete([5, 9, 12], SAMPLING, seed=seed) for seed in (1, 1, 2)]
    assert first.token_ids.tolist() == again.token_ids.tolist()
    assert first.token_ids.tolist() != other.token_ids.tolist()


async def test_many_long_seeded_prefills_at_once(engine: Engine) -> None:
    """More prompt tokens than one scheduling step takes: the engine must not cut a seeded request's prefill in two."""
    prefixes = [[7 + (index + position) % 50 for position in range(200)] for index in range(150)]
    completions = await asyncio.gather(*(engine.complete(p, SAMPLING, seed=i) for i, p in enumerate(prefixes)))
    assert len(completions) == 150
    assert not engine.dead


async def test_logprobs_are_those_of_the_sampled_distribution(engine: Engine, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prefix = [5, 9, 12, 30]
    completion = await engine.complete(prefix, SAMPLING, seed=3)
    assert len(completion.token_ids) > 1
    np.testing.assert_allclose(completion.logprobs, logprobs(model, prefix, completion), atol=1e-5)
    assert (completion.versions == 0).all()


async def test_weights_change_under_running_requests(engine: Engine, folder: Path) -> None:
    """Tied output layers included: the engine's logits must be the new model's."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    manifest, buffer = manifest_of(model, version=7)
    staged = StagedWeights(manifest, buffer)
    long = Sampling(temperature=0.7, max_new_tokens=200)
    running = [asyncio.create_task(engine.complete([5, 9 + seed], long, seed=seed)) for seed in range(32)]
    await asyncio.sleep(0.05)
    await engine.load_weights(manifest, staged.path, deadline_s=60)
    staged.close()
    versions = [completion.versions for completion in await asyncio.gather(*running)]
    assert all(set(v.tolist()) <= {0, 7} and (np.diff(v) >= 0).all() for v in versions)
    assert any((v == 7).any() for v in versions)

    prefix = [5, 9, 12, 30]
    completion = await engine.complete(prefix, SAMPLING, seed=3)
    assert (completion.versions == 7).all()
    np.testing.assert_allclose(completion.logprobs, logprobs(model, prefix, completion), atol=1e-4)
