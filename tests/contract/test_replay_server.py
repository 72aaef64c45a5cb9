"""The embedded server: it ends with its owner, comes back when killed, and refuses cleanly when it is full."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from cacherl.errors import ConfigError, DeadlineExceeded, ReplayError
from cacherl.replay_settings import ReplaySettings
from deploy.replay_cli import app
from replay_service.binary import find_server
from replay_service.server import ReplayServer, serving
from replay_service.store import Replay

RULES = ReplaySettings(warmup_steps=0, update_frequency=0, max_staleness=None, reconnect_s=20)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_what_was_acknowledged_survives_a_kill(server_binary, tmp_path, make_group):
    with ReplayServer(tmp_path, binary=server_binary) as server, Replay(server.url, "pool", RULES) as pool:
        for i in range(20):
            pool.push(make_group(f"g{i}"), priority=1 + i)
        plan = pool.sample("b", 4)
        before, address = pool.stats(), server.url
        os.kill(server.pid, signal.SIGKILL)
        assert pool.stats() == before  # the client reconnects by itself, to the same address
        assert server.url == address
        assert pool.sample("b", 4) == plan
        assert pool.ack("b", priorities={}) == "ok"
        assert pool.push(make_group("g0"), priority=1).status == "dup"
        assert pool.push(make_group("after"), priority=1).status == "ok"  # with scripts that the server had to learn again


def test_a_folder_is_served_by_the_server_that_runs_on_it_or_by_another_for_the_time_being(server_binary, tmp_path, make_group):
    with ReplayServer(tmp_path, binary=server_binary) as server, Replay(server.url, "pool", RULES) as pool:
        pool.push(make_group("g"), priority=1)
        with serving(tmp_path) as url:
            assert url == server.url
        assert alive(server.pid)
    with serving(tmp_path) as url, Replay(url, "pool") as pool:
        assert [info.group_id for info in pool.entries()] == ["g"]
    with pytest.raises(redis.ConnectionError), redis.Redis.from_url(url) as client:
        client.ping()
    with (
        pytest.raises(ReplayError, match=r"elsewhere is not the folder of an embedded replay server"),
        serving(tmp_path / "elsewhere"),
    ):
        pass


def test_the_command_line_finds_the_pool_of_a_run(server_binary, tmp_path, make_group):
    (tmp_path / "config.yaml").write_text("replay: {capacity: 512}\n")
    (tmp_path / "identity.json").write_text('{"run_id": "mine-1", "replay_namespace": "mine-1"}')
    with ReplayServer(tmp_path / "replay", binary=server_binary) as server, Replay(server.url, "mine-1", RULES) as pool:
        pool.push(make_group("g"), priority=1)
        running = CliRunner().invoke(app, ["stats", "--run", str(tmp_path), "--json"])
        assert json.loads(running.stdout)["groups"] == 1
    ended = CliRunner().invoke(app, ["list", "--run", str(tmp_path), "--json"])
    assert json.loads(ended.stdout)["group_id"] == "g"
    for arguments, message in (
        (["stats"], "give either --run FOLDER or --namespace NAME"),
        (["stats", "--run", str(tmp_path), "--url", "redis://h"], "--run knows its server: leave out --url"),
        (["stats", "--run", str(tmp_path / "replay")], "is not the folder of a run"),
    ):
        refused = CliRunner().invoke(app, arguments)
        assert isinstance(refused.exception, ConfigError)
        assert re.search(message, str(refused.exception))


def test_another_server_on_the_same_folder_finds_the_pool(server_binary, tmp_path, make_group):
    with ReplayServer(tmp_path, binary=server_binary) as server, Replay(server.url, "pool", RULES) as pool:
        pool.push(make_group("g"), priority=1)
    with ReplayServer(tmp_path, binary=server_binary) as server, Replay(server.url, "pool") as pool:
        assert pool.get("g").group_id == "g"


def test_the_append_only_file_is_synced_every_second_and_after_the_end(server_binary, tmp_path, monkeypatch, make_group):
    synced = []
    monkeypatch.setattr("replay_service.synchronizer._fsync", lambda path: synced.append((path.name, path.stat().st_size)))
    with ReplayServer(tmp_path, binary=server_binary) as server, Replay(server.url, "pool", RULES) as pool:
        pool.push(make_group("g"), priority=1)
        time.sleep(1.3)
        before = len(synced)
        assert before > 0
        time.sleep(1.1)
        assert len(synced) == before  # nothing has changed since
        pool.push(make_group("h"), priority=1)
    name, size = synced[-1]
    assert (tmp_path / "appendonlydir" / name).stat().st_size == size


def test_every_write_is_synced_on_request(server_binary, tmp_path):
    with ReplayServer(tmp_path, binary=server_binary, fsync="always") as server, redis.Redis.from_url(server.url) as raw:
        settings = raw.config_get("append*")
        assert (settings["appendonly"], settings["appendfsync"]) == ("yes", "always")


def test_stop_is_graceful_and_repeatable(server_binary, tmp_path):
    server = ReplayServer(tmp_path, binary=server_binary)
    server.start()
    pid = server.pid
    server.stop()
    server.stop()
    assert gone(pid, 0.1)
    assert server.pid is None
    assert "bye bye" in server.log_path.read_text()


def test_restarts_are_bounded(server_binary, tmp_path, caplog):
    with ReplayServer(tmp_path, binary=server_binary, max_restarts=0) as server:
        pid = server.pid
        assert server.failure is None
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        time.sleep(0.5)
        assert server.pid is None
        pool = Replay(server.url, "pool", ReplaySettings(reconnect_s=0.2))
        with pytest.raises(ReplayError, match=r"redis://127\.0\.0\.1:\d+ could not be reached for 0\.2 s"):
            pool.check()
        assert "died 1 times and is not started again; its log ends: " in str(server.failure)
        assert str(server.failure) in caplog.text


@pytest.mark.parametrize("name", ["sp ace", 'quo"te', "it's", "back\\slash", "new\nline", "hash#", "dollar$x", "ünï"])
def test_any_folder_will_do(server_binary, tmp_path, make_group, name):
    with ReplayServer(tmp_path / name, binary=server_binary) as server, Replay(server.url, "pool", RULES) as pool:
        assert pool.push(make_group("g"), priority=1).status == "ok"
    assert (tmp_path / name / "appendonlydir").is_dir()
    assert "bye bye" in server.log_path.read_text()


def test_a_server_that_hangs_is_given_up_after_reconnect_s(server_binary, tmp_path, make_group):
    with (
        ReplayServer(tmp_path, binary=server_binary) as server,
        Replay(server.url, "pool", dataclasses.replace(RULES, reconnect_s=1.0)) as pool,
    ):
        pool.check()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            start = time.monotonic()
            with pytest.raises(ReplayError, match="could not be reached for 1 s"):
                pool.push(make_group("g"), priority=1)
            assert 0.9 < time.monotonic() - start < 4
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert pool.push(make_group("g"), priority=1).status in ("ok", "dup")  # the first one may have arrived


@pytest.mark.parametrize("start_in", ["main thread", "thread that ends"])
def test_the_server_ends_with_a_killed_owner_and_not_before(server_binary, tmp_path, start_in):
    """PR_SET_PDEATHSIG follows the thread that forks: the server may not die with a short-lived thread that asked for it."""
    program = f"""
import sys, threading, time
from pathlib import Path
from replay_service.server import ReplayServer, serving
server = ReplayServer(Path({str(tmp_path)!r}), binary=Path({str(server_binary)!r}))
if {start_in!r} == "main thread":
    server.start()
else:
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
time.sleep(0.2)
sys.stdout.write(f"{{server.pid}}\\n")
sys.stdout.flush()
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.kill()
        assert gone(pid)


def test_secrets_stay_secret(server_binary, tmp_path, caplog):
    with ReplayServer(tmp_path, binary=server_binary) as server:
        password = redis.connection.parse_url(server.url)["password"]
        assert len(password) >= 32
        assert stat.S_IMODE((tmp_path / "server.conf").stat().st_mode) == 0o600
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        settings = ReplaySettings(url=server.url, shards=(server.url,))
        with Replay(server.url, "pool", settings) as pool:
            pool.check()
            for text in (repr(server), repr(pool), repr(settings), caplog.text, server.log_path.read_text()):
                assert password not in text
        wrong = Replay(server.url.replace(password, "not-the-password"), "pool", RULES)
        with pytest.raises(ReplayError, match=r"refused access.*check replay\.url") as refusal:
            wrong.check()
        assert "not-the-password" not in str(refusal.value)


def test_credentials_come_from_the_settings_where_the_url_has_none(server_binary, tmp_path, monkeypatch, make_group):
    with ReplayServer(tmp_path, binary=server_binary) as server:
        options = redis.connection.parse_url(server.url)
        with redis.Redis.from_url(server.url) as admin:
            # Everything that a pool needs, on its own keys only.
            rights = "~{mine}:* +@read +@write +@scripting +@transaction +@connection +info +time -@dangerous +info"
            admin.execute_command("ACL", "SETUSER", "learner", "on", ">word", *rights.split())
        monkeypatch.setenv("POOL_PASSWORD", "word")
        url = f"redis://{options['host']}:{options['port']}/0"
        settings = ReplaySettings(warmup_steps=0, update_frequency=0, username="learner", password_env="POOL_PASSWORD")
        with Replay(url, "mine", settings) as pool:
            pool.check()
            pool.push(make_group("g"), priority=1)
            assert pool.fetch([pool.sample("b", 1).entries[0].group_id])[0].group_id == "g"
            pool.ack("b", priorities={"g": 2.0})
        with Replay(url, "other", settings) as pool, pytest.raises(ReplayError, match=r"(?i)no permission"):
            pool.push(make_group("g"), priority=1)


def test_out_of_memory_writes_nothing(server_binary, tmp_path, make_group):
    with (
        ReplayServer(tmp_path, binary=server_binary, maxmemory=8_000_000) as server,
        Replay(server.url, "pool", RULES) as pool,
        redis.Redis.from_url(server.url) as raw,
    ):
        stored, refusal = 0, None
        while refusal is None:
            try:
                pool.push(make_group(f"g{stored}", tokens=20_000), priority=1)
                stored += 1
            except ReplayError as error:
                refusal = str(error)
        assert "out of memory, nothing was written: raise its maxmemory or lower replay.capacity" in refusal
        assert stored > 5
        assert pool.stats().groups == stored
        assert raw.exists(f"{{pool}}:g:g{stored}") == 0
        assert pool.sample("b", 4)
        pool.prune([f"g{i}" for i in range(stored)])
        assert pool.push(make_group(f"g{stored}", tokens=20_000), priority=1).status == "ok"


def test_out_of_memory_only_pushes_fail(server_binary, tmp_path, make_group):
    with (
        ReplayServer(tmp_path, binary=server_binary) as server,
        Replay(server.url, "pool", RULES) as pool,
        redis.Redis.from_url(server.url) as raw,
    ):
        for i in range(8):
            pool.push(make_group(f"g{i}", version=i // 2), priority=1)
        pool.sample("before", 2)
        raw.config_set("maxmemory", 1_000_000)
        with pytest.raises(ReplayError, match="out of memory, nothing was written"):
            pool.push(make_group("g8"), priority=1)
        with Replay(server.url, "pool") as other:
            assert other.stats().groups == 8
        assert pool.set_version(3) == 0
        assert pool.stats().version == 3
        assert len(pool.sample("b", 2)) == 2
        assert pool.ack("b", priorities={"g0": 2.0}) == "ok"
        assert pool.reap() == 0
        assert pool.prune(["g0", "g1"]) == 2
        assert pool.fetch(["g1", "g7"])[1].group_id == "g7"
        assert pool.set_version(3, drop_newer=True) == 0
        raw.config_set("maxmemory", 0)
        assert pool.push(make_group("g8"), priority=1).status == "ok"
        assert pool.stats().groups == 7


def test_a_server_that_would_evict_is_refused(server_binary, tmp_path):
    with ReplayServer(tmp_path, binary=server_binary, maxmemory=8_000_000) as server:
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ReplayError, match=r"maxmemory-policy allkeys-lru: .* set noeviction"):
            Replay(server.url, "pool", RULES).check()


def test_a_missing_program_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("replay_service.binary.find_bundled_server", lambda: None)
    with pytest.raises(ReplayError, match=r"no redis-server or valkey-server on PATH .* or set replay\.url"):
        find_server()


def test_scripts_run_on_a_cluster_node(server_binary, tmp_path, make_group, unused_tcp_port):
    """All keys of a pool share a hash tag, and scripts touch no others: a node in cluster mode accepts every operation."""
    port = unused_tcp_port if unused_tcp_port < 55_000 else unused_tcp_port - 12_000  # the cluster bus takes port + 10 000
    command = [
        server_binary,
        "--port",
        str(port),
        "--cluster-enabled",
        "yes",
        "--appendonly",
        "no",
        "--save",
        "",
        "--dir",
        tmp_path,
    ]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) as node:
        try:
            with redis.Redis(port=port) as raw:
                end = time.monotonic() + 10
                while time.monotonic() < end:
                    try:
                        raw.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                        break
                    except redis.ConnectionError:
                        time.sleep(0.05)
                while raw.cluster("info")["cluster_state"] != "ok" and time.monotonic() < end:
                    time.sleep(0.05)
            rules = ReplaySettings(
                warmup_steps=0,
                update_frequency=0,
                cooldown=1,
                newest_per_task=True,
                capacity=4,
                max_ahead=4,
                eviction="utility",
            )
            with Replay(f"redis://127.0.0.1:{port}/0", "pool", rules) as pool:
                for i in range(4):
                    pool.push(make_group(f"g{i}", task=f"t{i}"), priority=1)
                plan = pool.sample("b", 1)
                assert pool.ack("b", priorities={plan.entries[0].group_id: 2.0}) == "ok"
                pool.set_version(40)
                assert pool.reap() == 0
                assert pool.prune(["g3"]) in (0, 1)
                assert pool.clear() > 0
        finally:
            node.kill()


def test_clients_wait_out_a_failover(server_binary, tmp_path, make_group, unused_tcp_port):
    """A server that is a replica for a moment refuses writes; clients go on once it has been promoted."""
    with (
        ReplayServer(tmp_path, binary=server_binary) as server,
        Replay(server.url, "pool", RULES) as pool,
        redis.Redis.from_url(server.url) as admin,
        ThreadPoolExecutor(2) as threads,
    ):
        pool.push(make_group("before"), priority=1)
        admin.replicaof("127.0.0.1", unused_tcp_port)
        pushed = threads.submit(pool.push, make_group("during"), priority=1)
        drawn = threads.submit(pool.sample, "b", 1)
        time.sleep(0.3)
        assert not pushed.done()
        assert not drawn.done()
        admin.replicaof("NO", "ONE")
        assert pushed.result(10).status == "ok"
        assert len(drawn.result(10)) == 1
        assert pool.stats().groups == 2


def test_a_server_waits_for_the_one_before_it_on_its_folder(server_binary, tmp_path, make_group):
    first = ReplayServer(tmp_path, binary=server_binary)
    first.start()
    with Replay(first.url, "pool", RULES) as pool:
        pool.push(make_group("a"), priority=1.0)
    with pytest.raises(DeadlineExceeded, match="to answer"):
        ReplayServer(tmp_path, binary=server_binary, start_deadline_s=1.5).start()
    ended = threading.Timer(1.0, first.stop)
    ended.start()
    with ReplayServer(tmp_path, binary=server_binary) as second, Replay(second.url, "pool", join=True) as pool:
        assert len(pool) == 1
    ended.join()
