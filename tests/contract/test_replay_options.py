"""Each option of ReplaySettings acts on what is kept and sampled."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from cacherl.errors import CodecError, ReplayError
from replay_service.plan import SamplePlan, Wait


def drawn(pool, step, groups=1):
    plan = pool.try_sample(f"batch-{step}", groups)
    assert isinstance(plan, SamplePlan), plan
    pool.ack(f"batch-{step}", priorities={})
    return [entry.group_id for entry in plan.entries]


def shares(pool, draws, start=0):
    counts = Counter(drawn(pool, start + step)[0] for step in range(draws))
    return {group_id: count / draws for group_id, count in sorted(counts.items())}


def held(pool):
    return sorted(info.group_id for info in pool.entries())


def fill(pool, make_group, names, priority=1.0, **kinds):
    for name in names:
        assert pool.push(make_group(name, **kinds), priority=priority).status == "ok"


@pytest.mark.parametrize(("exponent", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 0.9)])
def test_priority_exponent(make_pool, make_group, exponent, share):
    pool = make_pool(priority_exponent=exponent)
    pool.push(make_group("low"), priority=1)
    pool.push(make_group("high"), priority=9)
    assert shares(pool, 600)["high"] == pytest.approx(share, abs=0.06)
    chances = {e.group_id: e.probability for e in pool.sample("last", 2).entries}
    assert chances == pytest.approx({"low": 1 - share, "high": share})


def test_a_changed_exponent_applies_to_what_the_pool_holds(make_pool, make_group):
    pool = make_pool("changed", priority_exponent=0.0)
    pool.push(make_group("low"), priority=1)
    pool.push(make_group("high"), priority=9)
    assert shares(pool, 300)["high"] == pytest.approx(0.5, abs=0.1)
    steep = make_pool("changed", priority_exponent=1.0)
    assert shares(steep, 600, start=300)["high"] == pytest.approx(0.9, abs=0.05)


def test_freshness_half_life(make_pool, make_group):
    pool = make_pool(freshness_half_life=4)
    pool.push(make_group("v0", version=0), priority=1)
    pool.push(make_group("v8", version=8), priority=1)
    pool.set_version(8)
    assert shares(pool, 600)["v8"] == pytest.approx(0.8, abs=0.06)
    by_name = {e.group_id: e.probability for e in pool.sample("b", 2).entries}
    assert by_name == pytest.approx({"v0": 0.2, "v8": 0.8})


def test_freshness_survives_many_half_lives(make_pool, make_group):
    """Weights grow with the version without bound; rebasing keeps them, and the ratio between groups, in range."""
    pool = make_pool(freshness_half_life=1)
    for version in range(0, 3000, 500):
        pool.push(make_group(f"v{version}", version=version), priority=1)
        pool.push(make_group(f"v{version + 1}", version=version + 1), priority=1)
        pool.set_version(version + 1)
    plan = pool.sample("b", 12)
    chance = {e.group_id: e.probability for e in plan.entries}
    assert chance["v2501"] == pytest.approx(2 / 3)
    assert chance["v2500"] == pytest.approx(1 / 3)
    assert all(np.isfinite(list(chance.values())))
    pool.ack("b", priorities={})
    assert shares(pool, 300)["v2501"] == pytest.approx(2 / 3, abs=0.1)


def test_fresh_fraction(make_pool, make_group):
    pool = make_pool(fresh_fraction=0.5)
    fill(pool, make_group, [f"old{i}" for i in range(8)], priority=1000)
    assert len(set(drawn(pool, 0, 8))) == 8
    fill(pool, make_group, [f"new{i}" for i in range(4)], priority=0.001)
    names = drawn(pool, 1, 4)
    assert sum(name.startswith("new") for name in names) == 2
    assert len(set(names)) == 4
    drawn(pool, 2, 4)
    assert sum(name.startswith("new") for name in drawn(pool, 3, 4)) == 0  # no fresh ones are left: the rest fills up


def test_newest_per_task(make_pool, make_group):
    pool = make_pool(newest_per_task=True)
    fill(pool, make_group, ["a1", "a2"], task="a")
    fill(pool, make_group, ["b1"], task="b")
    fill(pool, make_group, ["a3"], task="a")
    assert held(pool) == ["a3", "b1"]
    assert pool.stats().superseded == 2


def test_cooldown(make_pool, make_group):
    pool = make_pool(cooldown=2)
    fill(pool, make_group, "abc")
    order = [drawn(pool, step)[0] for step in range(6)]
    assert set(order[:3]) == set(order[3:]) == set("abc")
    assert order[:3] == order[3:]
    assert pool.try_sample("more", 2) == Wait(reason="eligible", have=1, need=2)


def test_a_cooling_group_takes_its_new_priority_back_into_the_index(make_pool, make_group):
    pool = make_pool(cooldown=1)
    fill(pool, make_group, "ab")
    first = drawn(pool, 0)[0]
    pool.sample("x", 1)
    pool.ack("x", priorities={next(n for n in "ab" if n != first): 0.0})
    assert drawn(pool, 1)[0] == first
    assert pool.try_sample("y", 1) == Wait(reason="eligible", have=0, need=1)


def test_max_uses(make_pool, make_group):
    pool = make_pool(max_uses=3)
    fill(pool, make_group, "ab")
    assert Counter(drawn(pool, step)[0] for step in range(6)) == {"a": 3, "b": 3}
    assert isinstance(pool.try_sample("b", 1), Wait)
    assert pool.stats().retired == 2


def test_eviction_stalest(make_pool, make_group):
    pool = make_pool(eviction="stalest", capacity=6, max_ahead=6)
    for name, version in (("v5", 5), ("v1", 1), ("v3", 3), ("v4", 4), ("v2", 2)):
        pool.push(make_group(name, version=version), priority=1)
    assert held(pool) == ["v3", "v4", "v5"]


def test_eviction_divergent(make_pool, make_group):
    pool = make_pool(eviction="divergent", capacity=6, max_ahead=6)
    fill(pool, make_group, "abc")
    pool.sample("s", 3)
    pool.ack("s", priorities=dict.fromkeys("abc", 1.0), divergences={"a": 0.01, "b": 0.5, "c": 0.02})
    fill(pool, make_group, "d")
    assert held(pool) == ["a", "c", "d"]
    fill(pool, make_group, "e")
    assert held(pool) == ["a", "d", "e"]


def test_eviction_utility(make_pool, make_group):
    pool = make_pool(eviction="utility", capacity=6, max_ahead=6, freshness_half_life=1)
    pool.push(make_group("new-low", version=4), priority=0.5)
    pool.push(make_group("old-high", version=0), priority=4)
    pool.push(make_group("new-high", version=4), priority=4)
    pool.push(make_group("middle", version=3), priority=1)
    assert held(pool) == ["middle", "new-high", "new-low"]
    pool.sample("s", 3)
    pool.ack("s", priorities={"new-high": 0.01})
    pool.push(make_group("next", version=4), priority=1)
    assert held(pool) == ["middle", "new-low", "next"]


def test_a_changed_eviction_ranks_what_the_pool_holds(make_pool, make_group):
    pool = make_pool("ranks", capacity=6, max_ahead=6)
    for name, version in (("v5", 5), ("v1", 1), ("v3", 3)):
        pool.push(make_group(name, version=version), priority=1)
    make_pool("ranks", capacity=6, max_ahead=6, eviction="stalest").push(make_group("v4", version=4), priority=1)
    assert held(pool) == ["v3", "v4", "v5"]


def test_periodic_clearing_of_the_oldest_share(make_pool, make_group):
    pool = make_pool(clear_every=10, clear_share=0.5)
    fill(pool, make_group, "abcd")
    pool.set_version(9)
    assert held(pool) == list("abcd")
    pool.set_version(10)
    assert held(pool) == list("cd")
    pool.set_version(19)
    assert (held(pool), pool.stats().cleared) == (list("cd"), 2)


def test_capacity_in_bytes(make_pool, make_group):
    pool = make_pool()
    pool.push(make_group("probe"), priority=1)
    size = pool.stats().bytes
    small = make_pool(capacity_bytes=3 * size)
    fill(small, make_group, [f"group{i}"[-5:] for i in range(5)])
    stats = small.stats()
    assert (stats.groups, stats.bytes, stats.evicted) == (3, 3 * size, 2)
    with pytest.raises(ReplayError, match="exceeds the whole pool"):
        small.push(make_group("large", size=20), priority=1)


def test_importance_weights(make_pool, make_group):
    def weights(**changes):
        pool = make_pool(**changes)
        pool.push(make_group("low"), priority=1)
        pool.push(make_group("high"), priority=4)
        pool.push(make_group("other"), priority=1)
        return {e.group_id: e.is_weight for e in pool.sample("b", 3).entries}

    assert weights(importance_sampling=False) == {"low": 1, "high": 1, "other": 1}
    assert weights(importance_beta=0.5) == pytest.approx({"low": 1, "high": 0.5, "other": 1})
    assert weights(importance_beta=1.0) == pytest.approx({"low": 1, "high": 0.25, "other": 1})
    # the whole pool was drawn, hence every group with certainty
    assert weights(importance_beta=1.0, importance_base="inclusion") == {"low": 1, "high": 1, "other": 1}


def test_importance_beta_is_annealed(make_pool, make_group):
    pool = make_pool(importance_beta=0.0, importance_beta_final=1.0, importance_anneal=4)
    pool.push(make_group("low"), priority=1)
    pool.push(make_group("high"), priority=4)
    plans = [pool.sample(f"b{step}", 2) for step in range(6)]
    seen = [next(e.is_weight for e in plan.entries if e.group_id == "high") for plan in plans]
    assert seen == pytest.approx([4**-0.0, 4**-0.25, 4**-0.5, 4**-0.75, 4**-1.0, 4**-1.0])


def test_payload_options_mix_in_one_pool(make_pool, make_group):
    sizes = {}
    for name, options in (("raw", {}), ("zstd", {"compress": True}), ("half", {"half_logprobs": True})):
        pool = make_pool("codecs", **options)
        pool.push(make_group(name, tokens=400), priority=1)
        sizes = {info.group_id: info.bytes for info in pool.entries()}
    assert sizes["zstd"] < 0.7 * sizes["raw"]
    assert sizes["half"] == sizes["raw"] - 2 * 2 * 4 + len("half") * 3 - len("raw") * 3
    assert [len(group) for group in pool.fetch(["raw", "zstd", "half"])] == [2, 2, 2]


def test_payloads_beyond_the_limit_are_refused_by_writer_and_reader(make_pool, make_group):
    pool = make_pool("limits")
    pool.push(make_group("g", tokens=1000), priority=1)
    limited = make_pool("limits", max_group_bytes=500)
    with pytest.raises(CodecError, match=r"'big' has \d+ bytes, max_group_bytes is 500"):
        limited.push(make_group("big", tokens=1000), priority=1)
    with pytest.raises(CodecError, match="the limit is 500"):
        limited.fetch(["g"])


def test_versions_may_be_far_ahead_of_the_learner(make_pool, make_group):
    """As after a resume: groups arrive from version 5000 before anybody has told the pool."""
    pool = make_pool(freshness_half_life=1)
    for version in (5000, 5001):
        pool.push(make_group(f"v{version}", version=version), priority=1)
    assert shares(pool, 300)["v5001"] == pytest.approx(2 / 3, abs=0.1)
    pool.set_version(0)
    assert shares(pool, 300, start=300)["v5001"] == pytest.approx(2 / 3, abs=0.1)


def test_probabilities_survive_the_removal_of_almost_all_mass(make_pool, make_group):
    pool = make_pool(freshness_half_life=1)
    pool.push(make_group("a"), priority=1e-6)
    pool.push(make_group("b"), priority=3e-6)
    pool.push(make_group("huge", version=15), priority=1e6)
    pool.sample("before", 1)
    pool.prune(["huge"])
    chances = {e.group_id: e.probability for e in pool.sample("after", 2).entries}
    assert chances == pytest.approx({"a": 0.25, "b": 0.75}, rel=1e-6)


def test_large_batches(make_pool, make_group):
    pool = make_pool()
    group = make_group("template", size=1)
    for i in range(3000):
        pool.push(dataclasses.replace(group, group_id=f"g{i}"), priority=1 + i % 9)
    plan = pool.sample("b", 2500)
    assert len({entry.group_id for entry in plan.entries}) == 2500
    assert pool.ack("b", priorities={entry.group_id: 0.5 for entry in plan.entries}) == "ok"
    pool.sample("rest", 3000)
    pool._index.run(lambda client: client.zadd(pool._keys.state[:-2] + "ls", {"rest": 1}))
    assert pool.reap() == 1
    assert pool.stats().never_sampled == 500
