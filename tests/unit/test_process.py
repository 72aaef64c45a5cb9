"""Children that die with their parent, and output that goes to a file, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: Starts a child that binds itself to this process, says both pids, and waits.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import sys, time
from cacherl.process import die_with_parent
die_with_parent(int(sys.argv[1]))
print("bound", flush=True)
time.sleep(60)
"""
REDIRECTED = """
import os, subprocess, sys
from pathlib import Path
from cacherl.process import redirect_output
print("to the terminal")
redirect_output(Path(sys.argv[1]))
print("from python", flush=True)
print("from stderr", file=sys.stderr, flush=True)
os.write(1, b"from C\\n")
subprocess.run(["sh", "-c", "echo from a child"], check=True)
"""


def running(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_child_is_gone_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert running(child)
        parent.send_signal(signal.SIGKILL)
        assert parent.wait(10) == -signal.SIGKILL
        deadline = time.monotonic() + 10
        while running(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not running(child)
    finally:
        parent.stdout.close()
        if running(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_whose_parent_is_gone_already_ends_at_once(sig: signal.Signals) -> None:
    code = f"from cacherl.process import die_with_parent; die_with_parent(1 << 22, {int(sig)}); print('alive')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (-sig, "")


def test_all_output_goes_to_the_end_of_the_file(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "actor.log"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", REDIRECTED, str(log)], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("to the terminal\n", "")
    assert log.read_text().splitlines() == ["from python", "from stderr", "from C", "from a child"] * 2
