"""How many trials a Ray cluster holds at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from deploy.tuning.settings import Search

#: GiB of main memory that one engine or learner rank on CPU, or a run's driver, takes besides the KV cache.
_PROCESS_GIB = 1.5
_GIB = 2**30
#: What an objective function is given.
_OBJECTIVE: Mapping[str, float] = {"CPU": 1.0}


def needs(config: RunConfig) -> dict[str, float]:
    """Ray resources of one run; 'memory' in bytes."""
    actors, learner = config.actors, config.learner
    engine_gib = _PROCESS_GIB + (0 if actors.gpus_per_actor else actors.kv_cache_gib)
    return {
        "CPU": actors.count * actors.cpus_per_actor + learner.workers * learner.cpus_per_worker,
        "GPU": float(actors.count * actors.gpus_per_actor + learner.workers * learner.gpus_per_worker),
        "memory": _GIB * (actors.count * engine_gib + (learner.workers + 1) * _PROCESS_GIB),
    }


def largest(search: Search) -> RunConfig:
    """The trial that needs most: every axis that changes a run's size at the value where it is largest."""
    point = {}
    for key, axis in search.space.axes.items():
        sizes = [(sum(needs(search.load({key: value})).values()), value) for value in axis.extremes]
        if min(sizes)[0] != max(sizes)[0]:
            point[key] = max(sizes)[1]
    return search.load(point)


def concurrency(search: Search, total: Mapping[str, float]) -> int:
    """Trials at a time on a cluster with the resources `total`: as many as asked for, else as many as fit. Memory is an
    estimate, so it lowers the number but refuses nothing.

    Raises:
        ConfigError: not even one fits, or fewer than asked for.
    """
    need = dict(_OBJECTIVE) if search.objective else needs(largest(search))
    wanted, room = search.settings.concurrency, {name: _room(total, name, need) for name in need}
    fits = int(min(room["CPU"], room.get("GPU", math.inf)))
    if search.base.ray.autoscaling and not search.objective:
        return wanted or max(1, fits)
    if fits < (wanted or 1):
        raise ConfigError(
            f"concurrency: the cluster has {total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs, a trial needs "
            f"{need['CPU']:g} and {need.get('GPU', 0):g}, so {fits} fit at a time, not {wanted or 1}"
        )
    return wanted or max(1, int(min(fits, room.get("memory", math.inf))))


def _room(total: Mapping[str, float], name: str, need: Mapping[str, float]) -> float:
    return (total.get(name, 0.0) + 1e-9) // need[name] if need[name] else math.inf
