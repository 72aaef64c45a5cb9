"""Secrets: passwords and keys that the driver hands to the processes of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secrets:
    """Environment variables by name. Their values are in no text of this object.

    To be handed over as an argument: Ray's runtime environments would end in its logs and in the command lines of processes.
    """

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def install(self) -> None:
        """Set them in this process, in place of what its node had."""
        os.environ.update(self.variables)
