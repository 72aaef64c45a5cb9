"""Names of the keys that Python touches; the whole layout is described in common.lua."""

from __future__ import annotations

from dataclasses import dataclass

from cacherl.replay_settings import check_namespace
from replay_service import scripts


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one pool; all carry the hash tag of its namespace, hence share one cluster slot.

    Raises:
        ConfigError: the namespace is not letters, digits and ``_ . : -``.
    """

    namespace: str

    def __post_init__(self) -> None:
        check_namespace(self.namespace)

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
    def recent(self) -> str:
        """Group id -> sequence number, of the last pushes."""
        return self._key("ids")

    @property
    def marks(self) -> str:
        """Group id -> mark of the reward that it was last re-scored with."""
        return self._key("mk")

    @property
    def garbage(self) -> str:
        """Groups whose payload on another server may be deleted."""
        return self._key("gc")

    def incoming(self, group_id: str) -> bytes:
        """Payload of one group until it is indexed."""
        return scripts.raw(self._key(f"in:{group_id}"))

    def payload(self, group_id: str) -> bytes:
        """Payload of one group."""
        return scripts.raw(self._key(f"g:{group_id}"))

    @property
    def everything(self) -> str:
        """Glob of all keys of the pool and of nothing else."""
        return self._key("*")
