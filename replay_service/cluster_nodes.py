"""The nodes of a Redis Cluster, any of which can tell where the pool is when another has died."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import redis

_ASK_EVERY_S = 30.0


class ClusterNodes:
    """Clients of the nodes heard of, all with the credentials of the first; of a server that is no cluster, only that one.

    Args:
        home: the client of the configured URL.
    """

    def __init__(self, home: redis.Redis) -> None:
        self._lock = threading.Lock()
        self._home = home
        self._clients = {_place(home): home}
        self._ask_at = 0.0

    def learn(self, client: redis.Redis) -> None:
        """Ask a node that answers for the others, if it is time to: nodes join and leave."""
        if time.monotonic() < self._ask_at:
            return
        self._ask_at = time.monotonic() + _ASK_EVERY_S
        try:
            table = client.execute_command("CLUSTER", "NODES")  # type: ignore[no-untyped-call]
        except redis.ResponseError:  # no cluster, or no right to ask: then what MOVED tells must do
            self._ask_at = math.inf
        except redis.RedisError:  # gone again: the operation has its answer, the next one will notice
            return
        else:
            for host, port in _places(table.decode()):
                self.at(client, host, port)

    def at(self, client: redis.Redis, host: str, port: int) -> redis.Redis:
        """The client of a node; an empty host means that of `client`."""
        place = (host or _place(client)[0], port)
        with self._lock:
            if place not in self._clients:
                pool = self._home.connection_pool
                access = {**pool.connection_kwargs, "host": place[0], "port": place[1]}
                self._clients[place] = redis.Redis.from_pool(
                    redis.ConnectionPool(connection_class=pool.connection_class, **access)
                )
            return self._clients[place]

    def after(self, client: redis.Redis) -> redis.Redis:
        """Whom to ask when `client` is gone: one after the other, the configured node among them."""
        with self._lock:
            clients = list(self._clients.values())
            return clients[(clients.index(client) + 1) % len(clients)]

    def close(self) -> None:
        """Release the sockets."""
        with self._lock:
            for client in self._clients.values():
                client.close()


def _place(client: redis.Redis) -> tuple[str, int]:
    access = client.connection_pool.connection_kwargs
    return access.get("host", "localhost"), access.get("port", 6379)


def _places(table: str) -> Iterator[tuple[str, int]]:
    """Host and port of each line of CLUSTER NODES: ``id host:port@busport[,name] flags ...``."""
    for line in table.splitlines():
        _, place, flags, *_ = line.split()
        host, _, port = place.partition("@")[0].rpartition(":")
        if not {"noaddr", "handshake", "fail"} & set(flags.split(",")):
            yield host, int(port)
