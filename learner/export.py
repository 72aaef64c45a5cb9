"""Saving the policy as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

#: Files of the initial folder that belong to its own weights and are not carried over.
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".index.json")


def save_folder(weights: Mapping[str, Tensor], source: Path, target: Path) -> None:
    """Write `weights` with the configuration and tokenizer of `source` to `target`, all or nothing.

    The folder appears under its name only when complete; a folder of that name is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copy2(file, staging / file.name)
    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(contiguous, staging / "model.safetensors", metadata={"format": "pt"})
    _put_in_place(staging, target)


def _put_in_place(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    retired = target.with_name(f".{target.name}.{os.getpid()}.retired")
    target.rename(retired)
    staging.rename(target)
    shutil.rmtree(retired)
