"""What is taken along to other nodes: the user's own code, and nothing that is there already."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cacherl.config import parse_config
from deploy.shipping import modules_to_ship, secrets_to_ship


def shipped(env_name: str = "research", **sections: object) -> list[str]:
    return modules_to_ship(parse_config({"env": {"name": env_name}, **sections}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_package_is_shipped_whole_and_a_module_as_a_file(folder: Path) -> None:
    (folder / "ship_pkg" / "inner").mkdir(parents=True)
    (folder / "ship_pkg" / "__init__.py").touch()
    (folder / "ship_single.py").touch()
    assert shipped("ship_pkg.inner.worlds:World") == [str(folder / "ship_pkg")]
    assert shipped("ship_single:World") == [str(folder / "ship_single.py")]


def test_parts_of_the_reward_and_a_priority_are_shipped_too(folder: Path) -> None:
    for name in ("ship_reward", "ship_priority"):
        (folder / f"{name}.py").touch()
    part = {"path": "ship_reward.politeness", "name": "politeness", "weight": 0.1}
    sections = {"reward": {"components": [part]}, "replay": {"priority": "ship_priority.longest"}}
    assert shipped(**sections) == [str(folder / "ship_reward.py"), str(folder / "ship_priority.py")]
    assert shipped("ship_reward:World", **sections) == shipped(**sections)


@pytest.mark.parametrize("name", ["research", "envs.research.family:ResearchFamily", "pytest:World", "json.decoder:World"])
def test_what_every_node_has_is_not_shipped(name: str) -> None:
    assert shipped(name) == []


def test_what_a_job_brought_along_is_not_shipped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = tmp_path / "working_dir_files" / "_ray_pkg_0123456789abcdef"
    unpacked.mkdir(parents=True)
    (unpacked / "ship_brought.py").touch()
    monkeypatch.syspath_prepend(str(unpacked))
    assert shipped("ship_brought:World") == []


def test_the_named_variables_that_the_driver_has_are_handed_on_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = {"weight": 0.1, "url": "http://h/v1", "model": "m", "api_key_env": "SHIP_KEY"}
    replay = {"url": "redis://h", "password_env": "SHIP_PASSWORD"}
    config = parse_config({"reward": {"judge": judge}, "replay": replay})
    monkeypatch.setenv("SHIP_OTHER", "not asked for")
    assert secrets_to_ship(config, judge=True).variables == {}
    monkeypatch.setenv("SHIP_PASSWORD", "hush")
    assert secrets_to_ship(config, judge=True).variables == {"SHIP_PASSWORD": "hush"}
    monkeypatch.setenv("SHIP_KEY", "silence")
    secrets = secrets_to_ship(config, judge=True)
    assert secrets.variables == {"SHIP_PASSWORD": "hush", "SHIP_KEY": "silence"}
    assert secrets_to_ship(config, judge=False).variables == {"SHIP_PASSWORD": "hush"}
    assert "hush" not in f"{secrets} {secrets!r}"
    monkeypatch.setenv("SHIP_KEY", "of the node")
    secrets.install()
    assert os.environ["SHIP_KEY"] == "silence"


def test_without_such_variables_nothing_is_handed_on() -> None:
    assert secrets_to_ship(parse_config({}), judge=True).variables == {}
