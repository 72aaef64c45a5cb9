"""The settings of an earlier run, as its folder has them; a later version may refuse them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cacherl.config import RunConfig, load_config
from cacherl.errors import ConfigError
from deploy.run_record import CONFIG_FILE, run_file


def config_of(folder: Path, overrides: Sequence[str] = (), *, otherwise: str) -> RunConfig:
    """The settings that the run in `folder` was made with.

    Args:
        overrides: put in the place of the run's before those are judged, so that they mend what is refused.
        otherwise: what the user can do but to change them, for the message.

    Raises:
        ConfigError: there is no run, or this version refuses its settings; names the file and every field.
    """
    file = run_file(folder, CONFIG_FILE)
    try:
        return load_config(file, overrides)
    except ConfigError as error:
        refused = str(error).replace("\n", "\n  ")
        raise ConfigError(
            f"{file}: this version of CacheRL does not accept the run's settings:\n  {refused}\n"
            f"remove or change them in that file, or {otherwise}"
        ) from error
