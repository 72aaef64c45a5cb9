"""Settings of the whole test run: no downloads, one thread a process, reproducible properties."""

from __future__ import annotations

import os
import signal

# Read once, at import, by the libraries concerned and by the processes they start: so set before any test imports them.
for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(_name, _value)

# A shell ignores Ctrl-C for what it starts in the background, and processes inherit that; tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

from hypothesis import settings  # noqa: E402

# No deadline and no database: the two cores are shared, and a run must not depend on the one before it.
settings.register_profile("cacherl", deadline=None, database=None, derandomize=True, print_blob=True)
settings.load_profile("cacherl")
