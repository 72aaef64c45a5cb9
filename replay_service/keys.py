"""Names of the keys that Python touches; the whole layout is described in common.lua."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one pool; all carry the hash tag of its namespace, hence share one cluster slot.

    Raises:
        ValueError: the namespace is not letters, digits and ``_ . : -``.
    """

    namespace: str

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(
                f"namespace {self.namespace!r} must be letters, digits and _ . : - and start with one of the former"
            )

    def _key(self, name: str) -> str:
        return f"{{{self.namespace}}}:{name}"

    @property
    def state(self) -> str:
        """Counters and configuration; the scripts derive every other key from it."""
        return self._key("st")

    @property
    def meta(self) -> str:
        """Group id -> packed meta."""
        return self._key("m")

    @property
    def never_sampled(self) -> str:
        """Sampling index of the groups without a use."""
        return self._key("new")

    @property
    def sampled(self) -> str:
        """Sampling index of the groups with a use."""
        return self._key("clk")

    @property
    def versions(self) -> str:
        """Policy version -> number of groups."""
        return self._key("vh")

    @property
    def recent(self) -> str:
        """Group id -> sequence number, of the last pushes."""
        return self._key("ids")

    @property
    def leases(self) -> str:
        """Batch -> end of its lease."""
        return self._key("ls")

    @property
    def marks(self) -> str:
        """Group id -> mark of the reward that it was last re-scored with."""
        return self._key("mk")

    @property
    def garbage(self) -> str:
        """Groups whose payload on another server may be deleted."""
        return self._key("gc")

    def payload(self, group_id: str) -> str:
        """Payload of one group."""
        return self._key(f"g:{group_id}")

    @property
    def everything(self) -> str:
        """Glob of all keys of the pool and of nothing else."""
        return self._key("*")
