"""Weights as one flat buffer with a table of contents: what a new version travels as."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacherl.policy import TensorSpec, WeightManifest

#: Every tensor starts at a multiple of this many bytes, so that a receiver can view it in place.
ALIGNMENT = 64


def flatten(weights: Mapping[str, Tensor], version: int) -> tuple[WeightManifest, npt.NDArray[np.uint8]]:
    """Copy CPU tensors into one buffer.

    Args:
        weights: checkpoint name -> tensor; a weight tied to another appears once.
        version: the learner version that these weights are.

    Returns:
        The manifest and uint8 [manifest.nbytes].
    """
    specs, offset = [], 0
    for name, tensor in weights.items():
        nbytes = tensor.numel() * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name=name, dtype=dtype, shape=tuple(tensor.shape), offset=offset, nbytes=nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    buffer = np.zeros(offset, dtype=np.uint8)
    for spec, tensor in zip(specs, weights.values(), strict=True):
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        buffer[spec.offset : spec.offset + spec.nbytes] = raw
    checksum = f"{zlib.crc32(buffer.data):08x}"
    return WeightManifest(version=version, tensors=tuple(specs), nbytes=offset, checksum=checksum), buffer
