"""A pool on a Redis Cluster: its keys share a slot, whose node the client finds, also after the slot has moved."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from support import free_port


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the cluster."""

    port: int
    client: redis.Redis
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def ident(self) -> str:
        return str(self.client.execute_command("CLUSTER", "MYID").decode())


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def _node(binary: Path, folder: Path) -> Iterator[Node]:
    port, bus = free_port(), free_port()
    folder.mkdir()
    options = {
        "port": port,
        "cluster-port": bus,
        "cluster-enabled": "yes",
        "repl-diskless-sync-delay": 0,
        "save": "",
        "bind": "127.0.0.1",
        "dir": folder,
    }
    command = [str(binary), *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        client = redis.Redis(port=port)
        try:
            _until(lambda: _answers(client), f"the node on port {port} to start")
            yield Node(port, client, process)
        finally:
            client.close()
            process.kill()


def _answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


@pytest.fixture
def nodes(server_binary: Path, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes, of which the second owns every slot."""
    with _node(server_binary, tmp_path / "one") as first, _node(server_binary, tmp_path / "two") as second:
        bus = second.client.config_get("cluster-port")["cluster-port"]
        first.client.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port, bus)
        second.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        for node in (first, second):
            _until(lambda at=node: b"cluster_state:ok" in at.client.execute_command("CLUSTER", "INFO"), "the cluster")
        yield first, second


def _move_slot(slot: int, origin: Node, target: Node) -> None:
    target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", origin.ident)
    origin.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ident)
    while keys := origin.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        origin.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, origin):
        node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.ident)


def test_a_pool_is_found_on_the_node_that_owns_it_and_follows_its_slot(nodes, make_pool, make_group) -> None:
    first, second = nodes
    pool = make_pool(at=first.url)
    pool.check()
    for name in "abc":
        assert pool.push(make_group(name), priority=1).status == "ok"
    slots = {second.client.execute_command("CLUSTER", "KEYSLOT", key) for key in second.client.keys("*")}
    assert len(slots) == 1
    assert first.client.dbsize() == 0
    assert {entry.group_id for entry in pool.sample("s", 3).entries} == set("abc")

    _move_slot(slots.pop(), second, first)
    assert pool.ack("s", priorities=dict.fromkeys("abc", 2.0)) == "ok"
    assert pool.push(make_group("d"), priority=1).status == "ok"
    assert sorted(info.group_id for info in pool.entries()) == list("abcd")
    assert [group.group_id for group in pool.fetch(["a", "d"])] == ["a", "d"]
    assert second.client.dbsize() == 0
    assert pool.clear() > 0
    assert first.client.dbsize() == 0


@pytest.fixture
def three(server_binary: Path, tmp_path: Path) -> Iterator[tuple[Node, Node, Node]]:
    """A node without slots that no longer waits for others, the owner of every slot, and the owner's replica."""
    with contextlib.ExitStack() as stack:
        plain, owner, replica = (stack.enter_context(_node(server_binary, tmp_path / name)) for name in ("a", "b", "c"))
        for node in (owner, replica):
            bus = node.client.config_get("cluster-port")["cluster-port"]
            plain.client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        owner.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        for node in (plain, owner, replica):
            _until(lambda at=node: _sees(at, 3), "the cluster")
        replica.client.execute_command("CLUSTER", "REPLICATE", owner.ident)
        _until(lambda: replica.client.info("replication").get("master_link_status") == "up", "the replica")
        yield plain, owner, replica


def _sees(node: Node, nodes: int) -> bool:
    facts = node.client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in facts and f"cluster_known_nodes:{nodes}".encode() in facts


@pytest.mark.parametrize("configured", ["another node", "the node that dies"])
def test_clients_find_the_replica_that_took_over_from_a_dead_owner(three, make_pool, make_group, configured) -> None:
    plain, owner, replica = three
    pool = make_pool(at=(plain if configured == "another node" else owner).url)
    assert pool.push(make_group("before"), priority=1).status == "ok"
    _until(lambda: replica.client.dbsize() == owner.client.dbsize(), "the replica to catch up")
    owner.process.kill()
    owner.process.wait()
    replica.client.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
    assert pool.push(make_group("after"), priority=1).status == "ok"
    assert {entry.group_id for entry in pool.sample("s", 2).entries} == {"before", "after"}
    assert pool.ack("s", priorities={}) == "ok"
