"""Two producers, two consumers, and a server that is killed again and again."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from cacherl.codec import encode_group
from cacherl.replay_settings import ReplaySettings
from replay_service.server import ReplayServer
from replay_service.store import Replay


def rules(kills: int) -> ReplaySettings:
    """A pool small enough for evictions, whose list of known ids is long enough to hold every push of the test."""
    return ReplaySettings(
        capacity=250 * kills,
        max_ahead=250 * kills,
        warmup_steps=0,
        update_frequency=0,
        max_uses=None,
        max_staleness=None,
        freshness_half_life=None,
        reconnect_s=60,
        deadline_s=60,
        lease_s=60,
    )


_HEAD = """
import itertools, json, os, sys
from pathlib import Path
from cacherl.replay_settings import ReplaySettings
from cacherl.codec import decode_group
from replay_service.store import Replay
pool = Replay(os.environ["POOL_URL"], "pool", ReplaySettings(**json.loads(os.environ["POOL_RULES"])))
me, folder = sys.argv[1], Path(sys.argv[2])
quota = int(0.8 * pool._settings.capacity)  # of groups; then the same ones again, which the pool must recognise
log = open(folder / me, "a", buffering=1)
running = lambda: not (folder / "stop").exists()
"""

# A line is written once the call has returned, so that what is logged was acknowledged.
_PRODUCER = (
    _HEAD
    + """
import dataclasses
template = decode_group((folder / "template").read_bytes())
for number in itertools.count():
    if not running(): break
    name = f"{me}-{number % quota}"
    result = pool.push(dataclasses.replace(template, group_id=name), priority=1 + number % 7)
    assert result.status in ("ok", "dup"), result
    log.write(name + "\\n")
"""
)

_CONSUMER = (
    _HEAD
    + """
for number in itertools.count():
    if not running(): break
    batch = f"{me}-{number}"
    plan = pool.sample(batch, 16)
    groups = pool.fetch([entry.group_id for entry in plan.entries])
    for entry, group in zip(plan.entries, groups):
        assert group is None or group.group_id == entry.group_id
    status = pool.ack(batch, priorities={entry.group_id: 2.0 for entry in plan.entries})
    log.write(f"{batch} {status} {sum(group is None for group in groups)}\\n")
"""
)


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost(server_binary, tmp_path, make_group, kills, capsys):
    (tmp_path / "template").write_bytes(encode_group(make_group("template", tokens=2000)))
    chance = random.Random(kills)
    with ReplayServer(tmp_path / "server", binary=server_binary, max_restarts=kills) as server:
        env = {**os.environ, "POOL_URL": server.url, "POOL_RULES": json.dumps(dataclasses.asdict(rules(kills)))}
        workers = {
            name: subprocess.Popen([sys.executable, "-c", program, name, str(tmp_path)], env=env, stderr=subprocess.PIPE)
            for name, program in (("p0", _PRODUCER), ("p1", _PRODUCER), ("c0", _CONSUMER), ("c1", _CONSUMER))
        }
        try:
            progress = _kill_and_wait(server, tmp_path, kills, chance)
            (tmp_path / "stop").touch()
            for name, worker in workers.items():
                _, errors = worker.communicate(timeout=60)
                assert worker.returncode == 0, f"{name}: {errors.decode()}"
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()
        with Replay(server.url, "pool", rules(kills)) as pool, redis.Redis.from_url(server.url) as raw:
            counts = _verify(pool, raw, tmp_path, rules(kills).capacity)
    with capsys.disabled():
        sys.stdout.write(f"\n{server_binary.name}: {kills} kills, all workers went on after each ({progress}); {counts}\n")


def _kill_and_wait(server: ReplayServer, folder: Path, kills: int, chance: random.Random) -> str:
    """Kill under load; after each kill every worker must get further."""
    names = ("p0", "p1", "c0", "c1")
    _all_advance(folder, dict.fromkeys(names, 0))
    for _ in range(kills):
        time.sleep(chance.uniform(0.05, 0.4))
        os.kill(server.pid, signal.SIGKILL)
        _all_advance(folder, {name: _lines(folder / name) for name in names})
    return ", ".join(f"{name}: {_lines(folder / name)} calls" for name in names)


def _all_advance(folder: Path, before: dict[str, int]) -> None:
    end = time.monotonic() + 30
    while not all(_lines(folder / name) > count + 1 for name, count in before.items()):
        assert time.monotonic() < end, f"stuck since {before}: {[(name, _lines(folder / name)) for name in before]}"
        time.sleep(0.02)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _verify(pool: Replay, raw: redis.Redis, folder: Path, capacity: int) -> str:
    acknowledged = {name for who in ("p0", "p1") for name in (folder / who).read_text().split()}
    stats = pool.stats()
    held = {info.group_id: info for info in pool.entries()}
    order = [name.decode() for name in raw.zrange("{pool}:ids", 0, -1)]
    sequence = {name: position for position, name in enumerate(order)}
    assert len(order) < 1024 + 2 * capacity  # nothing was trimmed, so the list is complete
    lost = acknowledged - set(sequence)
    assert lost == set()
    assert stats.inserted == 2 * len(order)  # none was counted twice
    assert stats.groups + stats.evicted == len(order)
    assert {sequence[name] for name in held} == set(range(len(order) - stats.groups, len(order)))  # the newest: evicted by rule
    groups = pool.fetch(list(held))
    assert [group.group_id for group in groups] == list(held)  # every payload is there and whole
    assert stats.bytes == sum(info.bytes for info in held.values())
    assert stats.trajectories == 2 * stats.groups == min(2 * len(order), capacity)
    prefix = len("{pool}:g:")
    assert {key.decode()[prefix:] for key in raw.scan_iter("{pool}:g:*", 1000) if raw.ttl(key) < 0} == set(held)
    batches = [line.split() for who in ("c0", "c1") for line in (folder / who).read_text().splitlines()]
    assert {status for _, status, _ in batches} <= {"ok", "dup"}
    assert stats.batches == len(batches)
    return (
        f"{len(acknowledged)} groups acknowledged, {len(order) - len(acknowledged)} more stored, 0 lost, 0 twice, 0 torn, "
        f"{stats.evicted} evicted by rule, {stats.groups} held; {len(batches)} batches, {sum(int(n) for *_, n in batches)} "
        f"groups evicted between draw and read"
    )
