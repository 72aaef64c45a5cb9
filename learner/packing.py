"""Packing: several rows in one line of tokens, so that little of what is computed is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cacherl.learner_settings import LearnerSection
from learner.batch import MicroBatch, Row, collate, micro_batches

#: Lines are as wide as this many times the longest row, the first that leaves at most a twentieth empty: attention is computed
#: over the whole line, so that wider ones cost more.
_WIDTHS = (1.0, 1.25, 1.5, 2.0, 3.0)
_FULL = 0.95


def cut(rows: Sequence[Row], settings: LearnerSection) -> list[MicroBatch]:
    """Micro-batches as `settings` ask for: padded or packed, limited in tokens and rows.

    Raises:
        ValueError: a row alone is longer than micro_batch_tokens.
    """
    if not settings.packing:
        return micro_batches(rows, settings.micro_batch_tokens, settings.mini_batch_size)
    return packed_batches(rows, settings.micro_batch_tokens, settings.mini_batch_size)


def packed_batches(rows: Sequence[Row], max_tokens: int, max_rows: int | None = None) -> list[MicroBatch]:
    """Micro-batches of packed lines, at most `max_tokens` tokens each, padding included.

    Args:
        max_rows: also at most so many rows in each; None: no limit.

    Raises:
        ValueError: a row alone is longer than `max_tokens`.
    """
    longest = max(map(len, rows), default=0)
    if longest > max_tokens:
        raise ValueError(f"a trajectory of {longest} tokens exceeds the micro-batch's {max_tokens}")
    return [
        collate(rows, lines, packed=True)
        for part in _parts(len(rows), max_rows)
        for lines in _stacks(part, [len(row) for row in rows], max_tokens)
    ]


def fill_lines(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Indices of `lengths` in lines of at most `width` tokens, fullest first (first fit, longest first: at most 11/9 of the
    fewest possible lines, and one)."""
    lines: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        place = next((line for line, left in enumerate(room) if left >= lengths[index]), len(lines))
        if place == len(lines):
            lines.append([])
            room.append(width)
        lines[place].append(index)
        room[place] -= lengths[index]
    return [lines[line] for line in sorted(range(len(lines)), key=lambda line: (room[line], line))]


def _parts(count: int, limit: int | None) -> Iterator[list[int]]:
    limit = limit or max(count, 1)
    return (list(range(start, min(start + limit, count))) for start in range(0, count, limit))


def _stacks(part: Sequence[int], lengths: Sequence[int], max_tokens: int) -> Iterator[list[list[int]]]:
    """The rows of `part` as lines, as many at a time as `max_tokens` allow."""
    chosen = [lengths[index] for index in part]
    lines = _best_lines(chosen, max_tokens)
    width = max(sum(chosen[place] for place in line) for line in lines)
    step = max_tokens // width
    for start in range(0, len(lines), step):
        yield [[part[place] for place in line] for line in lines[start : start + step]]


def _best_lines(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    total, best, best_share = sum(lengths), [[index] for index in range(len(lengths))], 0.0
    for factor in _WIDTHS:
        width = min(int(max(lengths) * factor), max_tokens)
        lines = fill_lines(lengths, width)
        share = total / (len(lines) * max(sum(lengths[index] for index in line) for line in lines))
        if share > best_share:
            best, best_share = lines, share
        if best_share >= _FULL:
            break
    return best
