"""`RedisStore`: recorded results in a Redis-protocol server, shared by every process that names it. Layout: put.lua."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from cacherl.errors import ConfigError, EnvironmentFault, boundary
from cacherl.replay_settings import without_password
from envs.tool_cache.entry import Recorded
from envs.tool_cache.normal import normal
from envs.tool_cache.store import CANDIDATES, Candidate

_FOLDER = Path(__file__).parent
_RETRIES = 3
_TIMEOUT_S = 10.0
_SCAN = 256


class RedisStore:
    """A bounded store under the keys '{namespace}:…'; eviction is by the server's scripts, so all clients share one bound.

    Raises:
        ConfigError: the server cannot be reached.
    """

    blocking = True

    def __init__(self, url: str, namespace: str, *, max_entries: int, max_bytes: int) -> None:
        self._where = f"tool-result cache at {without_password(url)}"
        self._limits = (max_entries, max_bytes)
        self._prefix = f"{{{namespace}}}:"
        self._keys = [self._prefix + name for name in ("entries", "used", "places", "normal", "counts")]
        retry = Retry(ExponentialBackoff(cap=1.0, base=0.05), _RETRIES)
        try:
            self._client: Any = redis.Redis.from_url(
                url, retry=retry, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, protocol=2
            )
            self._client.ping()
        except (redis.RedisError, ValueError) as error:
            raise ConfigError(f"env.tool_cache.url: no {self._where}: {error}") from error
        self._put = self._client.register_script((_FOLDER / "put.lua").read_text())
        self._get = self._client.register_script((_FOLDER / "get.lua").read_text())

    def __len__(self) -> int:
        return int(self._client.hlen(self._keys[0]))

    def get(self, exact: str) -> Recorded | None:
        return self._fetch(exact, "exact")

    def get_normalised(self, normalised: str) -> Recorded | None:
        return self._fetch(normalised, "normalised")

    def candidates(self, bucket: str) -> list[Candidate]:
        with boundary(EnvironmentFault, self._where):
            names = self._client.zrevrange(self._bucket_prefix + bucket, 0, CANDIDATES - 1)
            lines = self._client.hmget(self._keys[0], names) if names else []
            pairs = zip(names, lines, strict=True)
            return [(name.decode(), normal(Recorded.load(line).key.arguments)) for name, line in pairs if line is not None]

    def put(self, recorded: Recorded) -> None:
        key = recorded.key
        arguments: list[str | int] = [
            key.exact,
            recorded.dump(),
            key.normalised,
            key.bucket,
            *self._limits,
            self._bucket_prefix,
        ]
        with boundary(EnvironmentFault, self._where):
            self._put(keys=self._keys, args=arguments)

    def get_listing(self, toolkit: str) -> str | None:
        with boundary(EnvironmentFault, self._where):
            found = self._client.hget(self._prefix + "listings", toolkit)
            return None if found is None else cast(bytes, found).decode()

    def put_listing(self, toolkit: str, tools: str) -> None:
        with boundary(EnvironmentFault, self._where):
            self._client.hset(self._prefix + "listings", toolkit, tools)

    def results(self) -> Iterator[Recorded]:
        with boundary(EnvironmentFault, self._where):
            for _, line in self._client.hscan_iter(self._keys[0], count=_SCAN):
                yield Recorded.load(line)

    def close(self) -> None:
        self._client.close()

    @property
    def _bucket_prefix(self) -> str:
        return self._prefix + "bucket:"

    def _fetch(self, name: str, kind: str) -> Recorded | None:
        with boundary(EnvironmentFault, self._where):
            line = self._get(keys=self._keys, args=[name, kind, self._bucket_prefix])
            return None if line is None else Recorded.load(line)
