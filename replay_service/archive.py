"""A pool as a file that another pool can load.

``CRLP | version byte`` and then msgpack values: one ``[priority, payload]`` per group, oldest first, and the number of groups.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from cacherl import wire
from cacherl.codec import MAX_BYTES, decode_group, encode_group
from cacherl.errors import CodecError, ConfigError
from cacherl.trajectory import TrajectoryGroup
from replay_service.plan import PushResult
from replay_service.store import Replay

logger = logging.getLogger(__name__)

VERSION = 1
_MAGIC = b"CRLP"
#: Groups read or pushed with one round trip.
_AT_ONCE = 8

Progress = Callable[[int, int], None]
Prepare = Callable[[TrajectoryGroup], TrajectoryGroup | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Groups of a pool: written; left out because their payload is damaged."""

    exported: int
    damaged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """Groups of a file: taken; counted but not kept, at priority 0; known to the pool already; too stale for it."""

    imported: int
    zero_priority: int
    known: int
    stale: int


def export_pool(pool: Replay, path: Path, *, progress: Progress = lambda done, total: None) -> ExportResult:
    """Write a pool in use to `path`, which appears once it is complete.

    Groups that arrive meanwhile are left out, those evicted meanwhile are skipped.

    Args:
        progress: called with groups done and in total.

    Raises:
        ConfigError: `path` is a folder, or in none.
    """
    infos = sorted(pool.entries(), key=lambda info: info.sequence)
    priorities = {info.group_id: info.priority for info in infos}
    counts: Counter[str] = Counter()

    def records() -> Iterator[tuple[float, TrajectoryGroup]]:
        for done, group in enumerate(_readable(pool, list(priorities), counts), start=1):
            if group is not None:
                yield priorities[group.group_id], group
            progress(done, len(priorities))

    written = write_archive(path, records())
    return ExportResult(exported=written, damaged=counts["damaged"])


def write_archive(path: Path, records: Iterable[tuple[float, TrajectoryGroup]]) -> int:
    """Write (priority, group) pairs to `path`, which appears once it is complete; returns how many.

    Raises:
        ConfigError: `path` is a folder, or in none.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: " + ("it is a folder" if path.is_dir() else f"no folder {path.parent}"))
    written = 0
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(_MAGIC + bytes([VERSION]))
            for priority, group in records:
                file.write(msgpack.packb([priority, encode_group(group)]))
                written += 1
            file.write(msgpack.packb(written))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise
    return written


def _readable(pool: Replay, group_ids: list[str], counts: Counter[str]) -> Iterator[TrajectoryGroup | None]:
    """`pool.fetch`, a few at a time; None also for a damaged group, which is counted."""
    for start in range(0, len(group_ids), _AT_ONCE):
        part = group_ids[start : start + _AT_ONCE]
        try:
            yield from pool.fetch(part)
        except CodecError:
            for group_id in part:
                yield _get(pool, group_id, counts)


def _get(pool: Replay, group_id: str, counts: Counter[str]) -> TrajectoryGroup | None:
    try:
        return pool.get(group_id)
    except CodecError as error:
        logger.warning("left out group %s: %s", group_id, error)
        counts["damaged"] += 1
        return None


def import_pool(
    pool: Replay, path: Path, *, prepare: Prepare = lambda group: group, progress: Progress = lambda done, total: None
) -> ImportResult:
    """Push a file's groups with their priorities, without waiting for the learner, then start the pool's flow rule afresh.

    The whole file is read and checked before anything is pushed.

    Args:
        prepare: what is pushed in a group's place; None leaves it out.

    Raises:
        CodecError: not such a file, damaged, cut short, or of another version; a group exceeds max_group_bytes.
        ReplayError: a group exceeds the whole pool.
    """
    total = 0
    for _, group in read_archive(path):
        if (made := prepare(group)) is not None:
            pool.check_size(made)
            total += 1
    counts: Counter[str] = Counter()
    prepared = ((priority, prepare(group)) for priority, group in read_archive(path))
    records, done = ((priority, group) for priority, group in prepared if group is not None), 0
    while part := list(itertools.islice(records, _AT_ONCE)):
        results = pool.restore([group for _, group in part], priorities=[priority for priority, _ in part])
        counts.update(_outcome(result, priority) for result, (priority, _) in zip(results, part, strict=True))
        progress(done := done + len(part), total)
    pool.reset_flow()
    return ImportResult(imported=counts["ok"], zero_priority=counts["zero"], known=counts["dup"], stale=counts["stale"])


def _outcome(result: PushResult, priority: float) -> str:
    return "zero" if result.status == "ok" and priority == 0 else result.status


def read_archive(path: Path) -> Iterator[tuple[float, TrajectoryGroup]]:
    """(priority, group) of a file, one at a time.

    Raises:
        CodecError: see `import_pool`.
    """
    with path.open("rb") as file:
        header = file.read(len(_MAGIC) + 1)
        if header[:-1] != _MAGIC:
            raise CodecError(f"{path} is not an exported pool")
        if header[-1] != VERSION:
            raise CodecError(f"{path} has version {header[-1]}, this program reads {VERSION}")
        yield from _records(file, path)


def _records(file: BinaryIO, path: Path) -> Iterator[tuple[float, TrajectoryGroup]]:
    count = 0
    try:
        unpacker = msgpack.Unpacker(file, max_buffer_size=2 * MAX_BYTES, max_ext_len=0)
        for record in unpacker:
            if record == count and isinstance(record, int):
                if unpacker.read_bytes(1):
                    raise CodecError(f"{path} goes on after its end mark")
                return
            priority, payload = wire.fields(record, 2, "record")
            count += 1
            yield _priority(priority, path), decode_group(wire.as_bytes(payload, "payload"))
    except (ValueError, msgpack.UnpackException) as error:
        raise CodecError(f"{path} is damaged after {count} groups: {error}") from error
    raise CodecError(f"{path} ends after {count} groups, before its end mark: it was cut short")


def _priority(value: Any, path: Path) -> float:
    priority = wire.as_number(value, "priority")
    if not (math.isfinite(priority) and priority >= 0):
        raise CodecError(f"{path} is damaged: priority must be finite and >= 0, got {priority}")
    return priority
