"""Whether a server can hold a pool."""

from __future__ import annotations

import logging

import redis

from cacherl.errors import ReplayError

logger = logging.getLogger(__name__)

_OLDEST = (7, 0)  # scripts declare flags


def check_server(client: redis.Redis) -> None:
    """Raise when the server cannot, warn when it would lose acknowledged groups if it died.

    Raises:
        ReplayError: too old, no Lua scripting, or set to evict keys when memory is short.
    """
    facts = client.info()
    version = str(facts.get("redis_version", "0"))  # Valkey reports the Redis version it is compatible with
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise ReplayError(f"replay server has version {version}, needs at least {'.'.join(map(str, _OLDEST))}")
    policy = facts.get("maxmemory_policy", "noeviction")
    if int(facts.get("maxmemory", 0)) and policy != "noeviction":
        raise ReplayError(
            f"replay server has maxmemory-policy {policy}: it would throw away payloads behind the pool's back; set noeviction"
        )
    try:
        client.eval("return 1", 0)
    except redis.ResponseError as error:
        raise ReplayError(f"replay server runs no Lua scripts: {error}") from error
    if not int(facts.get("aof_enabled", 0)):
        logger.warning("replay server keeps no append-only file: groups are lost when it dies; set appendonly yes")
