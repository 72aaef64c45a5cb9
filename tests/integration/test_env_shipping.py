"""The user's own environment reaches processes on other nodes through Ray's runtime environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacherl.config import parse_config
from cacherl.environment_settings import EnvSection
from deploy.cluster import cluster
from envs.base import TaskSource
from envs.registry import load_source

OWN = """
from envs.research.family import ResearchFamily
from travelling.words import NAME

class Own(ResearchFamily):
    name = NAME
"""


def _load(name: str) -> tuple[str, str]:
    import importlib

    source: TaskSource = load_source(EnvSection(name=name))
    return source.family, str(importlib.import_module(name.partition(":")[0]).__file__)


def test_a_package_travels_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    package = tmp_path / "travelling"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "words.py").write_text('NAME = "own"\n')
    (package / "worlds.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "travelling.worlds:Own"
    config = parse_config(
        {"env": {"name": name}, "actors": {"cpus_per_actor": 0}, "learner": {"cpus_per_worker": 0}, "ray": {"dashboard": False}}
    )
    with cluster(config, "shipping"):
        package.rename(tmp_path / "gone")  # another node never had it
        remote = ray.remote(_load).options(runtime_env={"env_vars": {"SOME": "thing"}}, num_cpus=0)
        family, file = ray.get(remote.remote(name), timeout=60)
    assert family == "own"
    assert "py_modules_files" in file
