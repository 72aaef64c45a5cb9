"""A pool as a file that another pool can load.

``CRLP | version byte`` and then msgpack values: one ``[priority, payload]`` per group, oldest first, and the number of groups.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgpack

from cacherl import wire
from cacherl.codec import MAX_BYTES, decode_group, encode_group
from cacherl.errors import CodecError
from cacherl.trajectory import TrajectoryGroup
from replay_service.store import Replay

VERSION = 1
_MAGIC = b"CRLP"
#: Groups of a file pushed with one round trip.
_AT_ONCE = 8

Progress = Callable[[int, int], None]
Prepare = Callable[[TrajectoryGroup], TrajectoryGroup | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """Groups of a file: taken; known to the pool already; too stale for it."""

    imported: int
    known: int
    stale: int


def export_pool(pool: Replay, path: Path, *, progress: Progress = lambda done, total: None) -> int:
    """Write a pool in use to `path`, which appears once it is complete; returns the number of groups.

    Groups that arrive meanwhile are left out, those evicted meanwhile are skipped.

    Args:
        progress: called with groups done and in total.
    """
    infos = sorted(pool.entries(), key=lambda info: info.sequence)
    priorities = {info.group_id: info.priority for info in infos}

    def records() -> Iterator[tuple[float, TrajectoryGroup]]:
        for done, group in enumerate(pool.iterate(list(priorities)), start=1):
            if group is not None:
                yield priorities[group.group_id], group
            progress(done, len(priorities))

    return write_archive(path, records())


def write_archive(path: Path, records: Iterable[tuple[float, TrajectoryGroup]]) -> int:
    """Write (priority, group) pairs to `path`, which appears once it is complete; returns how many."""
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
        except BaseException:
            Path(file.name).unlink()
            raise
    Path(file.name).replace(path)
    return written


def import_pool(
    pool: Replay, path: Path, *, prepare: Prepare = lambda group: group, progress: Progress = lambda done, total: None
) -> ImportResult:
    """Push a file's groups with their priorities, without waiting for the learner, then start the pool's flow rule afresh.

    The whole file is read and checked before anything is pushed.

    Args:
        prepare: what is pushed in a group's place; None leaves it out.

    Raises:
        CodecError: not such a file, damaged, cut short, or of another version.
    """
    total = sum(prepare(group) is not None for _, group in read_archive(path))
    counts: Counter[str] = Counter()
    prepared = ((priority, prepare(group)) for priority, group in read_archive(path))
    records, done = ((priority, group) for priority, group in prepared if group is not None), 0
    while part := list(itertools.islice(records, _AT_ONCE)):
        results = pool.restore([group for _, group in part], priorities=[priority for priority, _ in part])
        counts.update(result.status for result in results)
        progress(done := done + len(part), total)
    pool.reset_flow()
    return ImportResult(imported=counts["ok"], known=counts["dup"], stale=counts["stale"])


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
        for record in msgpack.Unpacker(file, max_buffer_size=2 * MAX_BYTES, max_ext_len=0):
            if record == count and isinstance(record, int):
                return
            priority, payload = wire.fields(record, 2, "record")
            count += 1
            yield wire.as_number(priority, "priority"), decode_group(wire.as_bytes(payload, "payload"))
    except (ValueError, msgpack.UnpackException) as error:
        raise CodecError(f"{path} is damaged after {count} groups: {error}") from error
    raise CodecError(f"{path} ends after {count} groups, before its end mark: it was cut short")
