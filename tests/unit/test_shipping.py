"""What is taken along to other nodes: the user's own code, and nothing that is there already."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.shipping import modules_to_ship


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_package_is_shipped_whole_and_a_module_as_a_file(folder: Path) -> None:
    (folder / "ship_pkg" / "inner").mkdir(parents=True)
    (folder / "ship_pkg" / "__init__.py").touch()
    (folder / "ship_single.py").touch()
    assert modules_to_ship("ship_pkg.inner.worlds:World") == [str(folder / "ship_pkg")]
    assert modules_to_ship("ship_single:World") == [str(folder / "ship_single.py")]


@pytest.mark.parametrize("name", ["research", "envs.research.family:ResearchFamily", "pytest:World", "json.decoder:World"])
def test_what_every_node_has_is_not_shipped(name: str) -> None:
    assert modules_to_ship(name) == []


def test_what_a_job_brought_along_is_not_shipped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = tmp_path / "working_dir_files" / "_ray_pkg_0123456789abcdef"
    unpacked.mkdir(parents=True)
    (unpacked / "ship_brought.py").touch()
    monkeypatch.syspath_prepend(str(unpacked))
    assert modules_to_ship("ship_brought:World") == []
