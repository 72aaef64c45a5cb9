"""A version in an anonymous memory file: read by other processes while it is staged, gone afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from actors.weights import SharedMemoryUpdate, StagedWeights
from cacherl.errors import EngineError
from cacherl.policy import TensorSpec, WeightManifest

TENSORS = {
    "embed.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7,
    "norm.bias": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "steps": torch.tensor(2**40),
}

#: What a process that maps the file prints: name -> dtype, shape and values.
READER = """
import json, sys
from actors.weights import SharedMemoryUpdate
update = SharedMemoryUpdate(**json.load(sys.stdin))
print(json.dumps({name: [str(t.dtype), list(t.shape), t.double().flatten().tolist()] for name, t in update.tensors()}))
"""


def flat(version: int = 3) -> tuple[WeightManifest, npt.NDArray[np.uint8]]:
    """`TENSORS` in one buffer, with its table of contents."""
    parts, specs, offset = [], [], 0
    for name, tensor in TENSORS.items():
        raw = tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
        padded = torch.cat([raw.flatten(), torch.zeros(-raw.numel() % 8, dtype=torch.uint8)])
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name=name, dtype=dtype, shape=tuple(tensor.shape), offset=offset, nbytes=raw.numel()))
        parts.append(padded.numpy())
        offset += len(padded)
    buffer = np.concatenate(parts)
    checksum = f"{zlib.crc32(buffer.data):08x}"
    return WeightManifest(version=version, tensors=tuple(specs), nbytes=len(buffer), checksum=checksum), buffer


def open_files() -> set[str]:
    return {str(entry) for entry in Path("/proc/self/fd").iterdir()}


def test_another_process_reads_what_was_staged() -> None:
    manifest, buffer = flat()
    staged = StagedWeights(manifest, buffer)
    try:
        assert staged.version == 3
        assert staged.path.startswith(f"/proc/{os.getpid()}/fd/")
        update = json.dumps(SharedMemoryUpdate.of(manifest, staged.path).as_dict())
        answer = subprocess.run([sys.executable, "-c", READER], input=update, capture_output=True, text=True, check=True)
        assert json.loads(answer.stdout) == {
            name: [str(tensor.dtype), list(tensor.shape), tensor.double().flatten().tolist()]
            for name, tensor in TENSORS.items()
        }
        # An anonymous file: nothing of it is in /dev/shm, where it could outlive the run.
        assert Path(staged.path).readlink().as_posix() == "/memfd:cacherl-weights-3 (deleted)"
    finally:
        staged.close()


def test_a_reader_holds_the_weights_beyond_the_close() -> None:
    manifest, buffer = flat()
    staged = StagedWeights(manifest, buffer)
    tensors = dict(SharedMemoryUpdate.of(manifest, staged.path).tensors())
    path = Path(staged.path)
    staged.close()
    assert not path.exists()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_a_reader_does_not_change_what_others_read() -> None:
    manifest, buffer = flat()
    staged = StagedWeights(manifest, buffer)
    update = SharedMemoryUpdate.of(manifest, staged.path)
    dict(update.tensors())["embed.weight"].zero_()
    assert torch.equal(dict(update.tensors())["embed.weight"], TENSORS["embed.weight"])
    staged.close()


def test_the_update_is_plain_data() -> None:
    manifest, _ = flat()
    update = SharedMemoryUpdate.of(manifest, "/proc/1/fd/9").as_dict()
    assert update == json.loads(json.dumps(update))
    assert update["names"] == list(TENSORS)
    assert update["shapes"] == [[3, 4], [2], []]
    assert update["offsets"] == [0, 48, 56]


@pytest.mark.parametrize("damage", ["flipped", "short"])
def test_what_arrives_damaged_is_refused_and_leaves_nothing_open(damage: str) -> None:
    manifest, buffer = flat()
    if damage == "short":
        buffer = buffer[:-1]
    else:
        buffer[5] ^= 1
    before = open_files()
    with pytest.raises(EngineError, match=r"^weights of version 3 arrived damaged: size or checksum differs"):
        StagedWeights(manifest, buffer)
    assert open_files() == before


def test_memory_that_runs_out_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, buffer = flat()

    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr("actors.weights.os.write", full)
        with pytest.raises(EngineError, match=r"^weights of version 3 do not fit into memory: .*No space left"):
            StagedWeights(manifest, buffer)
    assert open_files() == before


def test_a_buffer_is_written_however_small_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, buffer = flat()
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr("actors.weights.os.write", lambda fd, data: write(fd, data[:7]))
        staged = StagedWeights(manifest, buffer)
    assert Path(staged.path).read_bytes() == buffer.tobytes()
    staged.close()


def test_a_read_only_buffer_as_ray_hands_it_out() -> None:
    manifest, buffer = flat()
    buffer.flags.writeable = False
    staged = StagedWeights(manifest, buffer)
    assert Path(staged.path).read_bytes() == buffer.tobytes()
    staged.close()


def test_a_manifest_checks_itself() -> None:
    manifest, _ = flat()
    with pytest.raises(ValueError, match="version must be >= 0, got -1"):
        WeightManifest(version=-1, tensors=(), nbytes=0, checksum="0")
    with pytest.raises(ValueError, match="version 3: tensors end at byte 64, buffer at 63"):
        WeightManifest(version=3, tensors=manifest.tensors, nbytes=63, checksum=manifest.checksum)
