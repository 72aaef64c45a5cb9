"""What a push leaves behind: nothing of a refused group, nobody else's payload touched, the answers of its neighbours."""

from __future__ import annotations

import time

import pytest
import redis

from cacherl.errors import ReplayError
from replay_service.plan import PushError


def statuses(results):
    return [result.status for result in results]


def held(pool):
    return sorted(info.group_id for info in pool.entries())


def test_a_repeated_push_leaves_the_payload_that_a_learner_still_holds(make_pool, make_group):
    pool = make_pool(capacity=4, max_ahead=1)
    pool.push(make_group("held"), priority=1)
    pool.sample("b", 1)
    for name in ("new1", "new2"):
        pool.push(make_group(name), priority=1)
    assert held(pool) == ["new1", "new2"]
    assert pool.push(make_group("held"), priority=1).status == "dup"
    assert pool.fetch(["held"])[0].group_id == "held"
    assert pool.push(make_group("new1"), priority=1).status == "dup"
    assert pool.restore([make_group("held")], priorities=[1.0])[0].status == "ok"
    assert (pool.get("held").group_id, held(pool)) == ("held", ["held", "new2"])


def test_no_refused_payload_stays(make_pool, make_group):
    pool = make_pool("refusing", max_staleness=1, warmup_steps=2, update_frequency=2, max_ahead=2, capacity=8)
    pool.set_version(9)
    with pytest.raises(ReplayError, match="'big' of 9 trajectories"):
        pool.try_push(make_group("big", size=9, version=9), priority=1)
    groups = [make_group(name, version=version) for name, version in (("a", 9), ("old", 0), ("flat", 9), ("b", 9), ("c", 9))]
    results = pool.try_push_many(groups, priorities=[1.0, 1.0, 0.0, 1.0, 1.0])
    assert statuses(results) == ["ok", "stale", "ok", "ok", "throttle"]
    keys = pool._index.run(lambda client: {key: client.ttl(key) for key in client.scan_iter("{refusing}:*")})
    assert {key: ttl for key, ttl in keys.items() if b":g:" in key or b":in:" in key} == {
        b"{refusing}:g:a": -1,
        b"{refusing}:g:b": -1,
    }


def test_one_push_evicts_as_much_as_it_takes(make_pool, make_group):
    pool = make_pool(capacity=200, max_ahead=1)
    for i in range(200):
        pool.push(make_group(f"g{i}", size=1), priority=1)
    assert pool.push(make_group("large", size=150), priority=1).evicted == 150
    assert pool.stats().trajectories == 200


def test_a_group_that_fails_does_not_take_the_answers_of_the_others(make_pool, make_group):
    pool = make_pool("neighbours", capacity=4, max_ahead=1)
    with pytest.raises(PushError, match=r"'big' of 5 trajectories and .* exceeds the whole pool") as failure:
        pool.try_push_many([make_group("a"), make_group("big", size=5), make_group("b")], priorities=[1.0, 1.0, 1.0])
    assert [result and result.status for result in failure.value.results] == ["ok", None, "ok"]
    pool._index.run(lambda client: client.set("{neighbours}:task", "somebody else's"))  # a script that fails half way
    newest = make_pool("neighbours", capacity=4, max_ahead=1, newest_per_task=True)
    newest.check()
    pool._index.run(lambda client: client.set("{neighbours}:task", "somebody else's"))  # a script that fails half way
    with pytest.raises(PushError, match=r"group 'c' was not stored: .*WRONGTYPE") as failure:
        newest.try_push_many([make_group("c"), make_group("a")], priorities=[1.0, 1.0])
    assert [result and result.status for result in failure.value.results] == [None, "dup"]
    pool._index.run(lambda client: client.delete("{neighbours}:task"))
    assert newest.push(make_group("c"), priority=1).status == "ok"  # what failed was not taken for known
    assert newest.get("c").group_id == "c"


def test_while_it_has_to_wait_a_push_asks_without_its_payload(make_pool, make_group):
    pool = make_pool(warmup_steps=2, update_frequency=2, max_ahead=2)
    for i in range(3):
        assert pool.try_push(make_group(f"g{i}"), priority=1).status == "ok"
    waiting = make_group("waiting", tokens=100_000)

    def written() -> int:
        return pool._index.run(lambda client: client.info("persistence"))["aof_current_size"]

    assert pool.try_push(waiting, priority=1).status == "throttle"
    before = written()
    assert {pool.try_push(waiting, priority=1).status for _ in range(50)} == {"throttle"}
    assert pool.try_push(make_group("g0"), priority=1).status == "dup"
    assert pool.stats().push_waits == 51
    assert statuses(pool.try_push_many([waiting, make_group("g1")], priorities=[1.0, 1.0])) == ["throttle", "dup"]
    assert written() - before < 20_000
    pool.sample("b", 1)
    assert pool.push(waiting, priority=1, deadline_s=5).status == "ok"
    assert pool.get("waiting").trajectories[0].token_ids.size == 100_000


def test_a_sharded_payload_that_expired_before_it_was_indexed_is_written_again(
    server, shard_servers, make_pool, make_group, monkeypatch
):
    """As when the index hangs for longer than an unclaimed payload is kept."""
    shards = tuple(each.url for each in shard_servers)
    pool = make_pool("slow-index", url=server.url, shards=shards, capacity=100, max_ahead=1)
    names = [f"g{i}" for i in range(4)]
    script = pool._index.script

    def after_the_expiry(name, *arguments):
        if name == "push":
            for url in shards:
                with redis.Redis.from_url(url) as shard:
                    for key in shard.scan_iter("{slow-index}:g:*"):
                        assert shard.ttl(key) == -1 or shard.ttl(key) > pool._index.patience_s
                        if shard.ttl(key) > 0:
                            shard.delete(key)
        return script(name, *arguments)

    monkeypatch.setattr(pool._index, "script", after_the_expiry)
    for name in names:
        assert pool.push(make_group(name), priority=1).status == "ok"
    assert [group.group_id for group in pool.fetch(names)] == names
    assert pool.push(make_group("flat"), priority=0).status == "ok"
    left = {key for url in shards for key in redis.Redis.from_url(url).scan_iter("{slow-index}:*")}
    assert left == {f"{{slow-index}}:g:{name}".encode() for name in names}


def test_a_sharded_payload_of_an_evicted_group_stays_while_it_is_leased(server, shard_servers, make_pool, make_group):
    shards = tuple(each.url for each in shard_servers)
    pool = make_pool("leased-shards", url=server.url, shards=shards, capacity=2, max_ahead=1, lease_s=0.3)
    pool.push(make_group("held"), priority=1)
    pool.sample("b", 1)
    pool.push(make_group("new"), priority=1)
    assert pool.push(make_group("held"), priority=1).status == "dup"
    assert pool.get("held").group_id == "held"
    time.sleep(0.4)
    pool.reap()
    assert pool.get("held") is None
