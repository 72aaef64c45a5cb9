"""Flat weight buffers, and what the model puts into them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from cacherl.errors import ConfigError
from learner.policy_model import load_policy
from learner.publish import ALIGNMENT, flatten
from learner_data import tiny_model


def test_buffer_reproduces_the_weights() -> None:
    weights = {
        "a": torch.arange(3, dtype=torch.float32),
        "b": torch.randn(2, 5).bfloat16(),
        "scalar": torch.tensor(7.0),
        "transposed": torch.randn(3, 4).T,
    }
    manifest, buffer = flatten(weights, version=4)
    assert (manifest.version, manifest.nbytes) == (4, len(buffer))
    assert manifest.checksum == f"{zlib.crc32(buffer.tobytes()):08x}"
    assert [spec.name for spec in manifest.tensors] == list(weights)
    flat = torch.from_numpy(buffer)
    for spec in manifest.tensors:
        assert spec.offset % ALIGNMENT == 0
        part = flat[spec.offset : spec.offset + spec.nbytes].view(getattr(torch, spec.dtype)).reshape(spec.shape)
        assert torch.equal(part, weights[spec.name])


def test_manifest_of_no_weights() -> None:
    manifest, buffer = flatten({}, version=0)
    assert manifest.nbytes == 0
    assert buffer.dtype == np.uint8


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_named_as_in_the_checkpoint_and_tied_ones_appear_once(tmp_path: Path, tied: bool) -> None:
    from safetensors.torch import load_file

    tiny_model(tmp_path, tied=tied)
    stored = load_file(tmp_path / "model.safetensors")
    named = load_policy(tmp_path, torch.float32).named_weights()
    assert ("lm_head.weight" in named) is not tied
    assert set(named) == set(stored)
    for name, value in stored.items():
        assert torch.equal(named[name], value), name


def test_models_that_transform_their_logits_are_refused(tmp_path: Path) -> None:
    import json

    tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"final_logit_softcapping": 30.0}))
    with pytest.raises(ConfigError, match=r"final_logit_softcapping=30\.0 is not supported"):
        load_policy(tmp_path, torch.float32)
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_policy(tmp_path / "nowhere", torch.float32)
