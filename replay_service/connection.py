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
from replay_service.addresses import address
from replay_service.cluster_nodes import ClusterNodes

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
#: After one of these another node of the cluster may answer.
_GONE = (redis.ConnectionError, redis.TimeoutError, ConnectionError, ClusterDownError)
_LONGEST_SOCKET_WAIT_S = 30.0
_SHORTEST_SOCKET_WAIT_S = 1.0


class Connection:
    """One server, from any thread; in a Redis Cluster the node that owns the pool's slot, which all keys of a pool share.

    When a node of a cluster dies, the others that it knew of are asked, the URL's among them, until one names the new owner.

    Operations given to `run` must be safe to repeat: a connection may break after the server has applied them.

    Args:
        url: redis:// or rediss:// with username, password and TLS options (``?ssl_ca_certs=/path``).
        settings: reconnect_s, and the credentials and CA file that the URL leaves out.

    Raises:
        ReplayError: the URL is malformed; it is not quoted, since it may hold a password.
        ConfigError: credentials or TLS options that cannot be used.
    """

    def __init__(self, url: str, settings: ReplaySettings) -> None:
        self._where = address(url)
        self._reconnect_s = settings.reconnect_s
        self._socket_wait_s = min(max(settings.reconnect_s, _SHORTEST_SOCKET_WAIT_S), _LONGEST_SOCKET_WAIT_S)
        self._closed = threading.Event()
        access = _access(url, settings)
        try:
            self._client = redis.Redis.from_url(
                url,
                socket_timeout=self._socket_wait_s,
                socket_connect_timeout=min(5.0, self._socket_wait_s),
                retry=Retry(NoBackoff(), 0),
                **access,
            )
        except (ValueError, TypeError):
            raise ReplayError(f"replay.url {self._where!r} is not a redis:// or rediss:// URL") from None
        self._nodes = ClusterNodes(self._client)

    def __repr__(self) -> str:
        return f"Connection({self._where})"

    @property
    def where(self) -> str:
        """The server's address without secrets, for messages."""
        return self._where

    @property
    def patience_s(self) -> float:
        """Seconds after which an operation has been applied or never will be."""
        return self._reconnect_s + self._socket_wait_s

    def run(self, operation: Callable[[redis.Redis], T]) -> T:
        """Do `operation`, again while the server cannot be reached.

        Raises:
            ReplayError: unreachable for `reconnect_s`, access or memory refused, or an error of the server.
        """
        give_up = time.monotonic() + self._reconnect_s
        for attempt in range(1_000_000):
            client = self._client
            try:
                answer = operation(client)
                self._nodes.learn(client)
                return answer
            except _REFUSED as error:
                raise ReplayError(f"replay server {self._where} refused access: {error}; check replay.url") from error
            except MovedError as error:
                logger.info("replay server %s: its cluster keeps the pool on %s:%d", self._where, error.host, error.port)
                self._client = self._nodes.at(client, error.host, error.port)
                self._wait_for_server(attempt, give_up, error)
            except _TRANSIENT as error:
                if isinstance(error.__context__, ssl.SSLCertVerificationError):
                    raise ReplayError(f"replay server {self._where} is not trusted: {error}; check replay.ca_file") from error
                if isinstance(error, _GONE):
                    self._client = self._nodes.after(client)
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
        self._nodes.close()

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
