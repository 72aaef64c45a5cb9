"""Seeded noise: `uniform` for any keyed draw, `ToolNoise` for latency and transient failures of tools."""

from __future__ import annotations

import hashlib
import math

_SCALE = 2.0**-64


def uniform(*key: object) -> float:
    """A number in [0, 1) that depends on `key` alone, in every process and version of Python."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") * _SCALE


class ToolNoise:
    """Latency and transient failures of one episode's tool calls.

    The n-th draw depends on the seed and n alone, so `draws` is the whole state.

    Args:
        seed: the episode's rollout_seed.
        failure_rate: probability that a call fails, in [0, 1); a repeated call draws anew.
        latency_s: mean of the exponentially distributed latency, in seconds; 0: none.
    """

    def __init__(self, seed: int, *, failure_rate: float, latency_s: float) -> None:
        self._seed = int(seed)
        self._failure_rate = failure_rate
        self._latency_s = latency_s
        self.draws = 0

    def draw(self) -> tuple[bool, float]:
        """Whether the next call fails, and how many seconds it takes."""
        self.draws += 1
        fails = self._failure_rate > 0 and uniform(self._seed, "failure", self.draws) < self._failure_rate
        if self._latency_s == 0:
            return fails, 0.0
        return fails, -self._latency_s * math.log1p(-uniform(self._seed, "latency", self.draws))
