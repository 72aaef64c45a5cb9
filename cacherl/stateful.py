"""Stateful: what a checkpoint is made of, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from cacherl.errors import CheckpointError


class Stateful(Protocol):
    """Something whose state goes into checkpoints.

    A state is a tree of dicts, lists, strings, numbers, booleans and None; on the learner also of tensors, and on the driver
    of nothing that JSON does not know. Loading what `state_dict` gave must make the rest of the run go on as if nothing had
    happened.
    """

    def state_dict(self) -> dict[str, Any]:
        """The state; may share memory with the object, so whoever keeps it copies it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""


def collect(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Name -> state of every part."""
    return {name: part.state_dict() for name, part in parts.items()}


def restore(parts: Mapping[str, Stateful], states: Mapping[str, Any], *, where: str) -> None:
    """Give every part its state.

    Args:
        where: what the states were read from, for the message.

    Raises:
        CheckpointError: a part has no state there, or a state no part: the checkpoint was made with other settings.
    """
    missing, foreign = sorted(parts.keys() - states.keys()), sorted(states.keys() - parts.keys())
    if missing or foreign:
        raise CheckpointError(
            f"{where} does not fit this run: it lacks the state of {missing or 'nothing'} and holds that of "
            f"{foreign or 'nothing'} besides; resume with the settings that it was made with"
        )
    for name, part in parts.items():
        part.load_state_dict(states[name])
