"""Exponential draws for the scripts, which draw none themselves: Lua's generator repeats itself on every fresh server."""

from __future__ import annotations

import threading

import numpy as np


class ExponentialDraws:
    """Exp(1) doubles from one seeded generator, usable from several threads."""

    def __init__(self, seed: int | None) -> None:
        self._generator = np.random.default_rng(seed)
        self._lock = threading.Lock()

    def one(self) -> float:
        """One draw."""
        with self._lock:
            return float(self._generator.standard_exponential())

    def packed(self, count: int) -> bytes:
        """`count` draws as little-endian doubles."""
        with self._lock:
            return self._generator.standard_exponential(count).astype("<f8").tobytes()
