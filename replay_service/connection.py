"""A connection that survives restarts of the server: bounded, jittered retries around whole operations."""

from __future__ import annotations

import logging
import os
import random
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.retry import Retry

from cacherl.errors import ConfigError, ReplayError
from cacherl.replay_settings import ReplaySettings
from replay_service import scripts

logger = logging.getLogger(__name__)
T = TypeVar("T")

_TRANSIENT = (
    redis.ConnectionError,
    redis.TimeoutError,
    ReadOnlyError,
    MasterDownError,
    ConnectionError,
    # A cluster that elects a master, or moves the pool's slot to another node: over soon.
    ClusterDownError,
    AskError,
    TryAgainError,
)
_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
_SOCKET_TIMEOUT_S = 30.0


class Connection:
    """One server, from any thread; in a Redis Cluster the node that owns the pool's slot, which all keys of a pool share.

    Operations given to `run` must be safe to repeat: a connection may break after the server has applied them.

    Args:
        url: redis:// or rediss:// with username, password and TLS options (``?ssl_ca_certs=/path``).
        settings: reconnect_s, and the credentials and CA file that the URL leaves out.

    Raises:
        ReplayError: the URL is malformed.
        ConfigError: credentials or TLS options that cannot be used.
    """

    def __init__(self, url: str, settings: ReplaySettings) -> None:
        self._where = _without_secrets(url)
        self._reconnect_s = settings.reconnect_s
        self._closed = threading.Event()
        access = _access(url, settings)
        try:
            self._client = redis.Redis.from_url(
                url,
                socket_timeout=_SOCKET_TIMEOUT_S,
                socket_connect_timeout=5.0,
                retry=Retry(NoBackoff(), 0),
                **access,
            )
        except (ValueError, TypeError) as error:
            raise ReplayError(f"replay.url {self._where!r} is not a redis:// or rediss:// URL: {error}") from None

    def __repr__(self) -> str:
        return f"Connection({self._where})"

    @property
    def where(self) -> str:
        """The server's address without secrets, for messages."""
        return self._where

    def run(self, operation: Callable[[redis.Redis], T]) -> T:
        """Do `operation`, again while the server cannot be reached.

        Raises:
            ReplayError: unreachable for `reconnect_s`, access or memory refused, or an error of the server.
        """
        give_up = time.monotonic() + self._reconnect_s
        for attempt in range(1_000_000):
            try:
                return operation(self._client)
            except _REFUSED as error:
                raise ReplayError(f"replay server {self._where} refused access: {error}; check replay.url") from error
            except MovedError as error:
                self._follow(error.host, error.port)
                self._wait_for_server(attempt, give_up, error)
            except _TRANSIENT as error:
                if isinstance(error.__context__, ssl.SSLCertVerificationError):
                    raise ReplayError(f"replay server {self._where} is not trusted: {error}; check replay.ca_file") from error
                self._wait_for_server(attempt, give_up, error)
            except OutOfMemoryError as error:
                raise ReplayError(
                    f"replay server {self._where} is out of memory, nothing was written: "
                    "raise its maxmemory or lower replay.capacity"
                ) from error
            except RedisError as error:
                if str(error).startswith("BUSY "):  # a script that has to touch every group takes its time
                    self._wait_for_server(attempt, give_up, error)
                    continue
                raise ReplayError(f"replay server {self._where}: {error}") from error
        raise AssertionError("unreachable")

    def script(self, name: str, state_key: str, arguments: bytes) -> Any:
        """Run a script on packed arguments and decode its answer."""
        return self.run(lambda client: scripts.unpack(_evaluate(client, scripts.load(name), state_key, arguments)))

    def pause(self, seconds: float) -> None:
        """Sleep, unless the connection is closed meanwhile.

        Raises:
            ReplayError: it is closed.
        """
        if self._closed.wait(seconds):
            raise ReplayError(f"connection to {self._where} was closed while waiting")

    def close(self) -> None:
        """Release the sockets and end waits of other threads; idempotent."""
        self._closed.set()
        self._client.close()

    def _follow(self, host: str, port: int) -> None:
        """Go on with another node of the cluster, with the same credentials; an empty host means the present one."""
        pool = self._client.connection_pool
        access = {**pool.connection_kwargs, "port": port}
        if host:
            access["host"] = host
        logger.info("replay server %s: its cluster keeps the pool on %s:%d", self._where, access["host"], port)
        moved = redis.ConnectionPool(connection_class=pool.connection_class, **access)
        self._client = redis.Redis.from_pool(moved)
        pool.disconnect(inuse_connections=False)

    def _wait_for_server(self, attempt: int, give_up: float, error: Exception) -> None:
        remaining = give_up - time.monotonic()
        if remaining <= 0 and not self._closed.is_set():
            raise ReplayError(
                f"replay server {self._where} could not be reached for {self._reconnect_s:g} s: {error}"
            ) from error
        # Of a connection that is closed meanwhile, pause() says so; its sockets fail in ways of their own.
        delay = min(0.02 * 2 ** min(attempt, 6), 1.0) * random.uniform(0.5, 1.0)
        if attempt == 3:
            logger.warning("replay server %s does not answer, retrying: %s", self._where, error)
        self.pause(max(min(delay, remaining), 0.0))


def _evaluate(client: redis.Redis, script: scripts.Script, state_key: str, packed: bytes) -> bytes:
    try:
        return cast(bytes, client.evalsha(script.sha, 1, state_key, packed))
    except NoScriptError:
        return cast(bytes, client.eval(script.source, 1, state_key, packed))


def _access(url: str, settings: ReplaySettings) -> dict[str, str]:
    """What the settings add to the URL, which prevails."""
    access: dict[str, str] = {}
    if settings.username is not None:
        access["username"] = settings.username
    if settings.password_env is not None:
        if settings.password_env not in os.environ:
            raise ConfigError(f"replay.password_env: the environment has no variable {settings.password_env}")
        access["password"] = os.environ[settings.password_env]
    if settings.ca_file is not None:
        if not url.startswith("rediss://"):
            raise ConfigError("replay.ca_file needs a rediss:// URL")
        if not Path(settings.ca_file).is_file():
            raise ConfigError(f"replay.ca_file: no file {settings.ca_file}")
        access["ssl_ca_certs"] = settings.ca_file
    return access


def _without_secrets(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 6379}{parts.path}"
    except ValueError:
        return "(malformed URL)"
