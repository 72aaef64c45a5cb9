"""Nobody reads the run's output any more (`cacherl train | head`): it is silent then, and ends as it would have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from deploy.panel import Panel
from deploy.run_view import RunView
from deploy.terminal import own_terminal

log = Path(sys.argv[1])
view = RunView(name="a", phase="one", elapsed_s=0, update=0, updates=2, actors_total=1, learner_ranks=1)
with own_terminal(log) as console, Panel(console, 0.0) as panel:
    for update in range(3):
        panel.show(replace(view, update=update))
    print("for the log")
log.with_name("summary").write_text("written")
"""


def test_a_run_outlives_its_reader(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "log")],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "summary").read_text() == "written"
    assert (tmp_path / "log").read_text() == "for the log\n"
