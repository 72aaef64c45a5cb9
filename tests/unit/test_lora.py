"""LoRA: what is trained, what the engines get, and the base model as the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from cacherl.config import parse_config
from cacherl.errors import ConfigError
from cacherl.learner_settings import LoraSection
from learner.batch import MicroBatch, micro_batches
from learner.export import save_folder
from learner.lora import without_adapter
from learner.policy_model import PolicyModel, load_policy
from learner_data import row, tiny_model

SETTINGS = LoraSection(rank=4, alpha=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def batch() -> MicroBatch:
    rng = np.random.default_rng(0)
    return micro_batches([row(rng, 20, 5), row(rng, 14, 4)], 100)[0]


def scores(model: PolicyModel, batch: MicroBatch) -> torch.Tensor:
    with torch.no_grad():
        return model(batch)[0]


def disturbed(model: PolicyModel) -> PolicyModel:
    torch.manual_seed(0)
    with torch.no_grad():
        for value in model.private_weights().values():
            value.copy_(0.1 * torch.randn_like(value))
    return model


def test_a_fresh_adapter_changes_nothing_and_only_it_is_trained(folder: Path, batch: MicroBatch) -> None:
    plain, adapted = load_policy(folder, torch.float32), load_policy(folder, torch.float32, SETTINGS)
    torch.testing.assert_close(scores(adapted, batch), scores(plain, batch), rtol=0, atol=0)
    names = adapted.private_weights()
    assert len(names) == 2 * 7 * 2  # two matrices for each of seven layers of two blocks
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    adapted(batch)[0].sum().backward()
    assert {name for name, value in adapted.named_parameters() if value.grad is not None} == set(names)


def test_what_is_published_is_the_merged_model(folder: Path, batch: MicroBatch, tmp_path: Path) -> None:
    adapted = disturbed(load_policy(folder, torch.float32, SETTINGS))
    copies = {name: value.detach().clone() for name, value in adapted.named_weights().items()}
    published = adapted.published(copies)
    initial = load_file(folder / "model.safetensors")
    assert published.keys() == initial.keys()
    changed = {name for name, value in published.items() if not torch.equal(value, initial[name])}
    assert changed == {name for name in initial if "_proj" in name}
    save_folder(published, folder, tmp_path / "merged")
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    merged = load_policy(tmp_path / "merged", torch.float32)
    torch.testing.assert_close(scores(merged, batch), scores(adapted, batch), rtol=0, atol=1e-5)
    assert (scores(merged, batch) - scores(load_policy(folder, torch.float32), batch)).abs().max() > 0.1


def test_the_reference_is_the_base_and_the_adapter_comes_back(folder: Path, batch: MicroBatch) -> None:
    adapted = disturbed(load_policy(folder, torch.float32, SETTINGS))
    before = scores(adapted, batch)
    with torch.no_grad(), without_adapter(adapted):
        reference = adapted(batch)[0]
    torch.testing.assert_close(reference, scores(load_policy(folder, torch.float32), batch), rtol=0, atol=0)
    torch.testing.assert_close(scores(adapted, batch), before, rtol=0, atol=0)
    assert all(value.requires_grad for value in adapted.private_weights().values())
    with pytest.raises(RuntimeError, match="without gradient only"), without_adapter(adapted):
        pass


def test_chosen_layers(folder: Path) -> None:
    adapted = load_policy(folder, torch.float32, LoraSection(rank=2, targets=("q_proj", "v_proj")))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in adapted.private_weights()} == {"q_proj", "v_proj"}
    with pytest.raises(ConfigError, match=r"learner\.lora\.targets \['no_proj'\]"):
        load_policy(folder, torch.float32, LoraSection(rank=2, targets=("no_proj",)))
    with pytest.raises(ConfigError, match=r"learner\.lora: alpha and targets without a rank have no effect"):
        parse_config({"learner": {"lora": {"alpha": 4}}})
