"""The nodes of a Redis Cluster, any of which can tell where the pool is when another has died."""

from __future__ import annotations

import threading

import redis


class ClusterNodes:
    """Clients of the nodes heard of, all with the credentials of the first; of a server that is no cluster, only that one.

    Args:
        home: the client of the configured URL.
    """

    def __init__(self, home: redis.Redis) -> None:
        self._lock = threading.Lock()
        self._home = home
        self._clients = {_place(home): home}
        self._asked: redis.Redis | None = None

    def learn(self, client: redis.Redis) -> None:
        """Ask a node that answers for the others; only once for as long as the pool stays there."""
        if self._asked is client:
            return
        self._asked = client
        try:
            ranges = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        except redis.RedisError:  # no cluster, no right to ask, or gone again: then what is known must do
            return
        for _, _, *nodes in ranges:
            for host, port, *_ in nodes:
                self.at(client, (host or b"").decode(), port)

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
