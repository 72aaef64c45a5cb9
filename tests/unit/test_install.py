"""The installer tells in one line what a machine lacks, and installs again only when its inputs changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.install import (
    INPUTS,
    LOCK,
    Environment,
    InstallError,
    StepFailedError,
    essence,
    fingerprint,
    pinned,
    problem_of_machine,
)

ROOT = Path(__file__).resolve().parents[2]
HEADER = Path(__file__)  # any file that exists stands for Python.h
GOOD: dict[str, Any] = {
    "system": "Linux",
    "machine": "x86_64",
    "version": (3, 11, 2),
    "has_venv": True,
    "compiler": "/usr/bin/c++",
    "python_header": HEADER,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files that an installation depends on."""
    for name in INPUTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"content of {name}")
    return tmp_path


@pytest.fixture
def environment(project: Path) -> Environment:
    """An environment whose Python is the running one and which is not sealed yet."""
    made = Environment(project)
    made.folder.mkdir()
    made.log_file.touch()
    return made


def test_a_complete_machine_has_no_problem() -> None:
    assert problem_of_machine(**GOOD) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"machine": "aarch64"}, "x86-64 Linux, this is Linux on aarch64"),
        ({"system": "Darwin"}, "this is Darwin"),
        ({"version": (3, 12)}, "CPython 3.11 is needed, this is 3.12"),
        ({"has_venv": False}, "apt-get install python3.11-venv"),
        ({"compiler": None}, "apt-get install g++"),
        ({"python_header": Path("/nowhere/Python.h")}, "apt-get install python3.11-dev"),
    ],
)
def test_each_missing_piece_is_one_line_with_the_remedy(change: dict[str, Any], says: str) -> None:
    problem = problem_of_machine(**{**GOOD, **change})
    assert problem is not None
    assert says in problem
    assert "\n" not in problem


def test_the_lock_pins_a_cpu_torch_and_none_of_the_vision_packages() -> None:
    lock = (ROOT / LOCK).read_text()
    assert pinned(lock, "torch") == "2.13.0+cpu"
    for package in ("torchvision", "torchaudio", "torchcodec"):
        with pytest.raises(InstallError, match=f"pins no {package}"):
            pinned(lock, package)


def test_every_input_changes_the_fingerprint(project: Path) -> None:
    seen = {fingerprint(project)}
    for name in INPUTS:
        (project / name).write_text("changed")
        seen.add(fingerprint(project))
    assert len(seen) == 1 + len(INPUTS)


def test_an_environment_without_a_python_is_not_current(environment: Environment) -> None:
    environment.seal()
    assert not environment.is_current()


def test_a_failed_command_shows_its_output_without_noise(environment: Environment) -> None:
    script = "print('WARNING: Location x is ignored'); print('boom'); raise SystemExit(3)"
    with pytest.raises(StepFailedError) as failure:
        environment.run(sys.executable, "-c", script)
    assert str(failure.value) == "boom"
    assert "Location x" in environment.log_file.read_text()


def test_essence_keeps_the_last_forty_lines() -> None:
    shown = essence("\n".join(f"line {number}" for number in range(100))).splitlines()
    assert (shown[0], shown[-1], len(shown)) == ("line 60", "line 99", 40)
