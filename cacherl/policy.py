"""WeightManifest: what one published version of the weights consists of, and `staleness`."""

from __future__ import annotations

from dataclasses import dataclass

#: Version of the weights that reinforcement learning starts from (after the warm start).
FIRST_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Where one tensor lies in a flat weight buffer.

    Attributes:
        name: its name in a Hugging Face checkpoint of the model.
        dtype: torch name without prefix, such as 'float32'.
        shape: its dimensions.
        offset, nbytes: position and size in the buffer, in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """Table of contents of one published version.

    Attributes:
        version: the learner version (number of optimizer steps since the warm start).
        tensors: in the order of the buffer.
        nbytes: size of the whole buffer, in bytes.
        checksum: hex CRC-32 of the buffer, checked by whoever copies it.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    nbytes: int
    checksum: str

    def __post_init__(self) -> None:
        if self.version < FIRST_VERSION:
            raise ValueError(f"WeightManifest version must be >= {FIRST_VERSION}, got {self.version}")
        end = max((spec.offset + spec.nbytes for spec in self.tensors), default=0)
        if end > self.nbytes:
            raise ValueError(f"WeightManifest version {self.version}: tensors end at byte {end}, buffer at {self.nbytes}")


def staleness(learner_version: int, sampled_version: int) -> int:
    """Learner version minus the version that sampled; 0 is on-policy."""
    return learner_version - sampled_version
