"""A pool opened again, with other settings or by another run: what it holds follows."""

from __future__ import annotations


def held(pool):
    return sorted(info.group_id for info in pool.entries())


def fill(pool, make_group, names, **kinds):
    for name in names:
        assert pool.push(make_group(name, **kinds), priority=1).status == "ok"


def test_newest_per_task_may_be_switched_off_and_on(make_pool, make_group):
    newest = make_pool("toggled", newest_per_task=True)
    fill(newest, make_group, ["a1"], task="a")
    fill(newest, make_group, ["b1"], task="b")
    every = make_pool("toggled")
    assert every.prune(["a1"]) == 1
    fill(every, make_group, ["b2", "b3"], task="b")
    assert held(every) == ["b1", "b2", "b3"]
    newest = make_pool("toggled", newest_per_task=True)
    newest.check()
    assert (held(newest), newest.stats().superseded) == (["b3"], 2)
    fill(newest, make_group, ["a2"], task="a")
    fill(newest, make_group, ["b4"], task="b")
    assert (held(newest), newest.get("a2").group_id) == (["a2", "b4"], "a2")


def test_less_room_applies_to_what_the_pool_holds(make_pool, make_group):
    pool = make_pool("shrunk")
    fill(pool, make_group, [f"g{i:03}" for i in range(200)])
    size = pool.stats().bytes // 200
    small = make_pool("shrunk", capacity=60, max_ahead=1)
    small.check()
    assert (small.stats().trajectories, small.stats().evicted) == (60, 170)
    assert held(small) == [f"g{i:03}" for i in range(170, 200)]
    smaller = make_pool("shrunk", capacity=60, max_ahead=1, capacity_bytes=10 * size)
    smaller.check()
    assert held(smaller) == [f"g{i:03}" for i in range(190, 200)]
    assert smaller.fetch(["g170"]) == [None]


def test_fewer_uses_apply_to_what_the_pool_holds(make_pool, make_group):
    pool = make_pool("used")
    fill(pool, make_group, ["a", "b"])
    for step in range(2):
        pool.sample(f"s{step}", 2)
        pool.ack(f"s{step}", priorities={})
    fill(pool, make_group, ["c"])
    pool.ack("last", priorities={})
    leased = pool.sample("leased", 3)
    strict = make_pool("used", max_uses=2)
    strict.check()
    assert len(leased) == 3
    assert (held(strict), strict.stats().eligible) == (["a", "b", "c"], 1)
    strict.ack("leased", priorities={})
    assert (held(strict), strict.stats().retired) == (["c"], 2)
    once = make_pool("used", max_uses=1)
    once.check()
    assert (held(once), once.stats().retired) == ([], 3)


def test_a_run_may_drop_what_another_left_from_its_future(make_pool, make_group):
    first = make_pool("fixed", freshness_half_life=8.0, max_staleness=16)
    first.set_version(50)
    fill(first, make_group, ["v50", "v49"], version=50)
    second = make_pool("fixed", freshness_half_life=8.0, max_staleness=16)
    assert second.set_version(0) == 0
    fill(second, make_group, ["v0"], version=0)
    assert held(second) == ["v0", "v49", "v50"]  # a learner that goes back to a checkpoint keeps what it made
    assert second.set_version(0, drop_newer=True) == 2
    assert (held(second), second.stats().pruned, second.stats().versions) == (["v0"], 2, {0: 1})
    fill(second, make_group, ["v1"], version=1)
    assert second.set_version(1, drop_newer=True) == 0
    chances = {entry.group_id: entry.probability for entry in second.sample("b", 2).entries}
    assert chances["v1"] / chances["v0"] == 2 ** (1 / 8)
