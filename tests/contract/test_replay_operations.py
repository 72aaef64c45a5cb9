"""Push, sample, fetch, acknowledge, expire: one behaviour on every server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cacherl.codec import encode_group
from cacherl.errors import DeadlineExceeded, ReplayError
from replay_service.plan import SamplePlan, Wait
from replay_service.server import ReplayServer
from replay_service.store import Replay


def ids(plan: SamplePlan | Wait) -> list[str]:
    assert isinstance(plan, SamplePlan), plan
    return [entry.group_id for entry in plan.entries]


def test_a_pushed_group_comes_back_as_it_was(make_pool, make_group):
    pool = make_pool()
    group = make_group("g", version=3, size=4, wins=2)
    assert pool.push(group, priority=0.5).status == "ok"
    plan = pool.sample("b", 1)
    entry = plan.entries[0]
    assert (entry.group_id, entry.trajectories, entry.tokens, entry.version, entry.priority, entry.uses) == (
        "g",
        4,
        32,
        3,
        0.5,
        0,
    )
    assert entry.bytes == len(encode_group(group))
    (back,) = pool.fetch(["g"])
    assert encode_group(back) == encode_group(group)


def test_a_repeated_push_is_recognised_also_after_eviction(make_pool, make_group):
    pool = make_pool(capacity=4, max_ahead=4)
    assert [pool.push(make_group(f"g{i}"), priority=1).status for i in range(3)] == ["ok", "ok", "ok"]
    assert pool.push(make_group("g2"), priority=1).status == "dup"
    assert pool.push(make_group("g0"), priority=1).status == "dup"
    assert pool.fetch(["g0"]) == [None]
    stats = pool.stats()
    assert (stats.groups, stats.trajectories, stats.evicted, stats.duplicates, stats.inserted) == (2, 4, 1, 2, 6)


def test_eviction_is_oldest_first_and_keeps_the_byte_count(make_pool, make_group):
    pool = make_pool(capacity=6, max_ahead=6)
    for i in range(10):
        pool.push(make_group(f"g{i}", tokens=8 + i), priority=1)
    assert sorted(ids(pool.sample("b", 3))) == ["g7", "g8", "g9"]
    assert pool.stats().bytes == sum(len(encode_group(make_group(f"g{i}", tokens=8 + i))) for i in (7, 8, 9))


def test_a_group_larger_than_the_pool_is_refused(make_pool, make_group):
    with pytest.raises(
        ReplayError, match=r"'big' of 5 trajectories and \d+ bytes exceeds the whole pool: raise replay.capacity"
    ):
        make_pool(capacity=4, max_ahead=4).push(make_group("big", size=5), priority=1)


def test_zero_priority_is_counted_and_never_kept(make_pool, make_group):
    pool = make_pool(warmup_steps=2)
    assert pool.push(make_group("flat"), priority=0).status == "ok"
    assert pool.push(make_group("flat"), priority=0).status == "dup"
    stats = pool.stats()
    assert (stats.groups, stats.inserted, stats.zero_variance, stats.successes) == (0, 2, 1, 1)
    assert pool.try_sample("b", 1) == Wait(reason="eligible", have=0, need=1)
    assert pool.fetch(["flat"]) == [None]


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_impossible_priorities_are_refused(make_pool, make_group, priority):
    pool = make_pool()
    with pytest.raises(ValueError, match="priority of group 'g' must be finite and >= 0"):
        pool.push(make_group("g"), priority=priority)
    with pytest.raises(ValueError, match="priority of group 'g'"):
        pool.ack("b", priorities={"g": priority})


def test_every_rank_gets_the_same_plan_and_the_lease_ends_with_the_last(make_pool, make_group):
    pool = make_pool("shared", seed=1)
    other = make_pool("shared", seed=2)
    for i in range(8):
        pool.push(make_group(f"g{i}"), priority=1)
    plan = pool.sample("run:1", 4)
    again = other.sample("run:1", 4)
    assert again == plan
    assert (plan.repeated, again.repeated) == (False, True)
    first, second = ids(plan)[:2], ids(plan)[2:]
    assert pool.ack("run:1", rank=0, world=2, priorities=dict.fromkeys(first, 2.0)) == "ok"
    assert pool.ack("run:1", rank=0, world=2, priorities=dict.fromkeys(first, 9.0)) == "dup"
    assert pool.stats().leases == 1
    assert other.ack("run:1", rank=1, world=2, priorities=dict.fromkeys(second, 3.0)) == "ok"
    assert pool.stats().leases == 0
    everything = {e.group_id: e.priority for e in pool.sample("run:2", 8).entries}
    assert everything == {
        **dict.fromkeys((f"g{i}" for i in range(8)), 1.0),
        **dict.fromkeys(first, 2.0),
        **dict.fromkeys(second, 3.0),
    }
    assert pool.sample("run:1", 4) == plan  # a rank that restarts after the last acknowledgement still gets its share


def test_an_unknown_batch_is_late(make_pool, make_group):
    pool = make_pool()
    pool.push(make_group("g"), priority=1)
    assert pool.ack("never drawn", priorities={"g": 5.0}) == "late"
    assert pool.sample("b", 1).entries[0].priority == 1.0


def test_an_expired_lease_gives_everything_back(make_pool, make_group):
    pool = make_pool(lease_s=0.05, max_uses=1, update_frequency=2, warmup_steps=2, max_ahead=10)
    pool.push(make_group("g"), priority=1)
    assert ids(pool.sample("b1", 1)) == ["g"]
    assert pool.try_sample("b2", 1) == Wait(reason="inserted", have=2, need=4)
    time.sleep(0.1)
    assert pool.reap() == 1
    stats = pool.stats()
    assert (stats.batches, stats.sampled, stats.expired, stats.leases, stats.never_sampled) == (0, 0, 1, 0, 1)
    assert pool.ack("b1", priorities={"g": 7.0}) == "late"
    entry = pool.sample("b2", 1).entries[0]
    assert (entry.group_id, entry.uses, entry.priority) == ("g", 0, 1.0)


def test_sampling_reaps_by_itself(make_pool, make_group):
    pool = make_pool(lease_s=0.05, max_uses=1)
    pool.push(make_group("g"), priority=1)
    pool.sample("b1", 1)
    time.sleep(0.1)
    assert ids(pool.try_sample("b2", 1)) == ["g"]


def test_a_used_up_group_stays_readable_until_its_last_lease_is_acknowledged(make_pool, make_group):
    pool = make_pool(max_uses=2)
    pool.push(make_group("g"), priority=1)
    pool.sample("b1", 1)
    pool.sample("b2", 1)
    assert pool.try_sample("b3", 1) == Wait(reason="eligible", have=0, need=1)
    pool.ack("b2", priorities={"g": 1.0})
    assert pool.fetch(["g"])[0] is not None
    pool.ack("b1", priorities={"g": 1.0})
    assert pool.fetch(["g"]) == [None]
    assert (pool.stats().retired, pool.stats().groups) == (1, 0)


def test_an_evicted_group_stays_readable_while_it_is_leased(make_pool, make_group):
    pool = make_pool(capacity=2, max_ahead=2)
    pool.push(make_group("old"), priority=1)
    pool.sample("b", 1)
    pool.push(make_group("new"), priority=1)
    assert pool.stats().groups == 1
    assert pool.fetch(["old"])[0].group_id == "old"
    assert pool.ack("b", priorities={"old": 3.0}) == "ok"
    assert ids(pool.sample("b2", 1)) == ["new"]


def test_staleness_is_enforced_at_the_push_and_at_the_sample(make_pool, make_group):
    pool = make_pool(max_staleness=2)
    pool.push(make_group("v0", version=0), priority=1)
    pool.push(make_group("v3", version=3), priority=1)
    assert pool.set_version(2) == 0
    assert pool.set_version(4) == 1
    result = pool.push(make_group("late", version=1), priority=1)
    assert (result.status, result.have, result.need) == ("stale", 3, 2)
    assert ids(pool.sample("b", 1)) == ["v3"]
    stats = pool.stats()
    assert (stats.stale_dropped, stats.stale_refused, stats.versions, stats.version) == (1, 1, {3: 1}, 4)


def test_flow_of_trajectories_and_batches(make_pool, make_group):
    pool = make_pool(warmup_steps=4, update_frequency=2, max_ahead=4)

    def push(n):
        return pool.try_push(make_group(f"g{n}"), priority=1).status

    assert push(0) == "ok"
    assert pool.try_sample("b0", 1) == Wait(reason="inserted", have=2, need=4)
    assert [push(i) for i in range(1, 6)] == ["ok", "ok", "ok", "ok", "throttle"]  # 8 = warm-up + max_ahead, one group over it
    assert isinstance(pool.try_sample("b0", 1), SamplePlan)
    assert push(5) == "ok"
    for step in (1, 2, 3, 4):
        assert isinstance(pool.try_sample(f"b{step}", 1), SamplePlan)
    assert pool.try_sample("b5", 1) == Wait(reason="inserted", have=12, need=14)


def test_a_starved_learner_lifts_the_throttle(make_pool, make_group):
    """Groups without variance use up the allowance: the learner would wait for groups, the actors for the learner."""
    pool = make_pool(warmup_steps=2, update_frequency=2, max_ahead=2)
    for i in range(3):
        assert pool.try_push(make_group(f"flat{i}"), priority=0).status == "ok"
    assert pool.try_push(make_group("a"), priority=1).status == "throttle"
    assert pool.try_sample("b", 2) == Wait(reason="eligible", have=0, need=2)
    assert [pool.try_push(make_group(name), priority=1).status for name in "abc"] == ["ok", "ok", "throttle"]
    assert isinstance(pool.try_sample("b", 2), SamplePlan)


def test_waits_say_what_they_wait_for_and_end(make_pool, make_group):
    pool = make_pool(warmup_steps=2, update_frequency=2, max_ahead=2)
    with pytest.raises(DeadlineExceeded, match=r"0.05 s waiting for actors to insert trajectories \(0 of 2 that warmup_steps"):
        pool.sample("b", 1, deadline_s=0.05)
    for i in range(3):
        pool.push(make_group(f"g{i}"), priority=1)
    with pytest.raises(DeadlineExceeded, match=r"the learner to catch up \(6 trajectories arrived, 4 allowed\)"):
        pool.push(make_group("g3"), priority=1, deadline_s=0.05)
    pool.sample("b", 1)
    assert pool.push(make_group("g3"), priority=1).status == "ok"


def test_a_resumed_pool_with_other_rules_owes_no_backlog(make_pool, make_group):
    pool = make_pool("resumed", warmup_steps=4, update_frequency=2, max_ahead=8)
    for i in range(4):
        pool.push(make_group(f"g{i}"), priority=1)
    for step in range(2):
        pool.sample(f"b{step}", 1)
    hungrier = make_pool("resumed", warmup_steps=6, update_frequency=1000, max_ahead=8)
    hungrier.check()
    assert (hungrier.stats().arrived, hungrier.stats().due) == (6, 6)
    assert isinstance(hungrier.try_sample("b2", 1), SamplePlan)
    assert isinstance(hungrier.try_sample("b3", 1), Wait)
    hungrier.reset_flow()
    assert isinstance(hungrier.try_sample("b3", 1), SamplePlan)


def test_a_changed_update_frequency_keeps_what_is_owed_and_what_is_ahead(make_pool, make_group):
    pool = make_pool("governed", warmup_steps=2, update_frequency=2, max_ahead=20)
    for i in range(6):
        pool.push(make_group(f"g{i}"), priority=1)
    pool.sample("b0", 1)
    assert (pool.stats().arrived, pool.stats().due) == (12, 4)  # groups of two: eight ahead
    pool.set_update_frequency(5)
    assert pool.stats().arrived - pool.stats().due == 8
    pool.set_update_frequency(5)
    assert isinstance(pool.try_sample("b1", 1), SamplePlan)
    assert isinstance(pool.try_sample("b2", 1), SamplePlan)
    assert pool.stats().arrived - pool.stats().due == -2
    assert isinstance(pool.try_sample("b3", 1), Wait)
    pool.set_update_frequency(1)  # what is owed at the old rate stays owed
    assert isinstance(pool.try_sample("b3", 1), Wait)
    pool.push(make_group("g6"), priority=1)
    assert isinstance(pool.try_sample("b3", 1), SamplePlan)
    assert isinstance(pool.try_sample("b4", 1), Wait)
    with pytest.raises(ValueError, match="update_frequency must be >= 1 to be changed, got 0"):
        pool.set_update_frequency(0)


def test_two_pools_on_one_server_do_not_see_each_other(make_pool, make_group):
    one, two = make_pool("pool"), make_pool("pool2")
    one.push(make_group("g"), priority=1)
    two.push(make_group("g"), priority=1)
    assert one.clear() > 0
    assert (one.stats().groups, two.stats().groups) == (0, 1)
    assert two.fetch(["g"])[0].group_id == "g"


def test_joining_needs_a_pool(server: ReplayServer, make_pool, make_group):
    joined = Replay(server.url, "nobody-made-this")
    with pytest.raises(ReplayError, match="there is no pool 'nobody-made-this'"):
        joined.stats()
    make_pool("made", warmup_steps=2).push(make_group("g"), priority=1)
    with Replay(server.url, "made") as joined:
        assert joined.stats().due == 2


def test_lost_payloads_are_forgotten(make_pool, make_group):
    pool = make_pool("lossy")
    pool.push(make_group("a"), priority=1)
    pool.push(make_group("b"), priority=1)
    pool._index.run(lambda client: client.delete("{lossy}:g:a"))
    a, b = pool.fetch(["a", "b"])
    assert (a, b.group_id) == (None, "b")
    assert (pool.stats().orphans, pool.stats().groups) == (1, 1)


def test_a_pool_that_somebody_deleted_is_made_anew(make_pool, make_group):
    pool = make_pool("deleted", warmup_steps=2)
    pool.push(make_group("g"), priority=1)
    assert make_pool("deleted", warmup_steps=2).clear() > 0
    assert (pool.stats().groups, pool.stats().due) == (0, 2)
    make_pool("deleted", warmup_steps=2).clear()
    assert pool.push(make_group("g"), priority=1).status == "ok"
    assert ids(pool.sample("b", 1)) == ["g"]


def test_closing_ends_a_wait_in_another_thread(make_pool):
    pool = make_pool()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.sample, "b", 1, deadline_s=60)
        while pool.stats().sample_waits < 1:
            time.sleep(0.01)
        pool.close()
        with pytest.raises(ReplayError, match="closed while waiting"):
            waiting.result(10)


def test_many_threads_share_one_client(make_pool, make_group):
    pool = make_pool()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: pool.push(make_group(f"g{i}"), priority=1), range(100)))
        plans = list(threads.map(lambda i: pool.sample(f"b{i % 10}", 5), range(50)))
        assert list(threads.map(lambda i: pool.ack(f"b{i}", priorities={}), range(10))) == ["ok"] * 10
    assert all(plans[i] == plans[i % 10] for i in range(50))
    stats = pool.stats()
    assert (stats.groups, stats.inserted, stats.batches, stats.leases) == (100, 200, 10, 0)


def test_the_pool_knows_what_it_took_also_what_it_did_not_keep(make_pool, make_group):
    pool = make_pool()
    pool.push(make_group("kept"), priority=1.0)
    pool.push(make_group("zero"), priority=0.0)
    pool.push(make_group("pruned"), priority=1.0)
    pool.prune(["pruned"])
    assert pool.pushed(["never", "kept", "zero", "pruned"]) == [False, True, True, True]
    assert pool.pushed([]) == []


def test_several_groups_go_together_each_taken_or_refused_by_itself(make_pool, make_group, monkeypatch):
    pool = make_pool(max_staleness=2)
    pool.set_version(5)
    pool.push(make_group("known", version=5), priority=1)
    groups = [
        make_group("a", version=5),
        make_group("known", version=5),
        make_group("old", version=0),
        make_group("b", version=4),
    ]
    results = pool.try_push_many(groups, priorities=[1.0, 1.0, 1.0, 0.0])
    assert [result.status for result in results] == ["ok", "dup", "stale", "ok"]
    assert sorted(info.group_id for info in pool.entries()) == ["a", "known"]
    assert pool.stats().zero_variance == 1
    assert pool.try_push_many([], priorities=[]) == []
    monkeypatch.setattr("replay_service.payloads._TRAIN_BYTES", 1)  # every group in a part of its own
    assert [result.status for result in pool.try_push_many(groups, priorities=[1.0] * 4)] == ["dup", "dup", "stale", "dup"]
    with pytest.raises(ValueError, match="priority of group 'c' must be finite and >= 0, got -1"):
        pool.try_push_many([make_group("d", version=5), make_group("c", version=5)], priorities=[1.0, -1.0])
    assert pool.get("d") is None
