"""ReplaySettings as the pool stores them: one blob in the pool's state, read by every script, the same for all clients."""

from __future__ import annotations

import math

import msgpack

from cacherl.replay_settings import ReplaySettings


def encode(settings: ReplaySettings) -> bytes:
    """The blob; equal settings give equal bytes. Lua has no null: -1 stands for no staleness limit, 0 for the other limits."""
    return bytes(
        msgpack.packb(
            {
                "alpha": float(settings.priority_exponent),
                "half_life": float(settings.freshness_half_life or 0),
                "capacity": settings.capacity,
                "bytes": settings.capacity_bytes or 0,
                "eviction": settings.eviction,
                "clear_every": settings.clear_every,
                "clear_share": float(settings.clear_share),
                "fresh": float(settings.fresh_fraction),
                "newest": settings.newest_per_task,
                "cooldown": settings.cooldown,
                "shards": len(settings.shards),
                "max_stale": -1 if settings.max_staleness is None else settings.max_staleness,
                "max_uses": settings.max_uses or 0,
                "warmup": settings.warmup_steps,
                "freq": settings.update_frequency,
                "ahead": settings.max_ahead,
                "lease_ms": max(1, int(settings.lease_s * 1000)),
                "remember": 1024 + 2 * settings.capacity,
            }
        )
    )


def room_of(blob: bytes) -> tuple[int, float]:
    """(capacity, capacity_bytes) in a blob; infinity for no limit of bytes."""
    stored = msgpack.unpackb(blob)
    return stored["capacity"], stored["bytes"] or math.inf
