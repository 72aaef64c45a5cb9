"""Third-party chatter goes to the log file: a learner process owns no terminal."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from cacherl.process import redirect_output

_CHATTY = ("DeepSpeed", "transformers", "torch.distributed", "numexpr")


def log_to(path: Path) -> None:
    """Send logging, warnings, and whatever libraries print, to the end of `path`.

    Call it before deepspeed and transformers are imported: they attach handlers to the streams that they find.
    """
    redirect_output(path)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True, handlers=[_stream()]
    )
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _stream() -> logging.Handler:
    # The stream is the redirected stderr, so that logging and C libraries' writes keep their order in one file.
    return logging.StreamHandler()
