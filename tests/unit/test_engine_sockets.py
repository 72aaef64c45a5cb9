"""The folder of vLLM's sockets: short enough for a socket's path, and gone afterwards."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest

from actors.sockets import name_sockets_apart, unname_sockets


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/none")


def test_a_connected_socket_outlives_its_name() -> None:
    folder = name_sockets_apart()
    assert os.environ["VLLM_RPC_BASE_PATH"] == str(folder)
    path = f"{folder}/{uuid4()}"  # as vLLM names them
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
        accepted, _ = server.accept()
        unname_sockets()
        assert not folder.exists()
        with accepted:
            client.send(b"still here")
            assert accepted.recv(100) == b"still here"
    unname_sockets()  # nothing is left to remove


@pytest.mark.parametrize("depth", [0, 20, 40, 60, 100])
def test_a_socket_fits_however_long_the_folder_of_temporary_files_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    temporary = tmp_path / ("d" * depth) if depth else Path("/tmp")
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = name_sockets_apart()
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{folder}/{uuid4()}")
        assert folder.parent in (temporary, Path("/tmp"))
        assert (folder.parent == temporary) == (len(f"{temporary}/cacherl-vllm-12345678/{uuid4()}") <= 107)
    finally:
        unname_sockets()
    assert not folder.exists()


def test_a_folder_of_the_users_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(tmp_path))
    unname_sockets()
    assert tmp_path.is_dir()
