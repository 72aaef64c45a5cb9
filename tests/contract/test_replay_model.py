"""Random interleavings of everything that happens to a pool, against a model of a few dictionaries."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from cacherl.replay_settings import ReplaySettings
from replay_service.plan import SamplePlan, Wait
from replay_service.server import ReplayServer
from replay_service.store import Replay

_pools = itertools.count()

limits = st.fixed_dictionaries(
    {
        "capacity": st.sampled_from([6, 12]),
        "eviction": st.sampled_from(["oldest", "stalest", "divergent"]),
        "max_uses": st.sampled_from([None, 1, 2]),
        "max_staleness": st.sampled_from([None, 2]),
        "cooldown": st.sampled_from([0, 1]),
        "newest_per_task": st.booleans(),
        "fresh_fraction": st.sampled_from([0.0, 0.5]),
        "freshness_half_life": st.sampled_from([None, 0.05]),  # a version step is many half-lives: rebasing happens
        "warmup_steps": st.sampled_from([0, 4]),
        "update_frequency": st.sampled_from([0, 2]),
    }
)


@dataclass
class Member:
    """One group of the model."""

    sequence: int
    size: int
    version: int
    task: str
    priority: float
    divergence: float = 0.0
    uses: int = 0
    leases: int = 0
    cool_until: int = 0


@dataclass
class Model:
    """What the pool must hold."""

    limits: ReplaySettings
    groups: dict[str, Member] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    plans: dict[str, list[str]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    version: int = 0
    inserted: int = 0
    draws: int = 0
    sequence: int = 0
    starved: int = 0

    def eligible(self) -> list[str]:
        uses = self.limits.max_uses
        return sorted(
            name
            for name, member in self.groups.items()
            if member.priority > 0 and (uses is None or member.uses < uses) and member.cool_until <= self.draws
        )

    @property
    def due(self) -> int:
        return self.limits.warmup_steps + self.draws * self.limits.update_frequency

    def push(self, name: str, member: Member) -> str:
        if name in self.known:
            return "dup"
        if self.limits.max_staleness is not None and self.version - member.version > self.limits.max_staleness:
            return "stale"
        ahead = self.inserted > self.due + self.limits.max_ahead
        if self.limits.update_frequency and ahead and len(self.indexed()) >= self.starved:
            return "throttle"
        self.known.add(name)
        self.sequence += 1
        self.inserted += member.size
        if member.priority > 0:
            member.sequence = self.sequence
            self.keep(name, member)
        return "ok"

    def indexed(self) -> list[str]:
        """Eligible, except that cooling ends only when a batch is asked for."""
        return [name for name in self.eligible() if name not in self.cooling]

    cooling: set[str] = field(default_factory=set)

    def keep(self, name: str, member: Member) -> None:
        if self.limits.newest_per_task:
            for other in [key for key, value in self.groups.items() if value.task == member.task]:
                self.remove(other)
        self.groups[name] = member
        self.evict()

    def evict(self) -> None:
        while sum(value.size for value in self.groups.values()) > self.limits.capacity:
            self.remove(min(self.groups, key=lambda key: self.rank(self.groups[key])))

    def reopen(self, limits: ReplaySettings) -> None:
        became_strict = limits.newest_per_task and not self.limits.newest_per_task
        self.limits = limits
        for name, member in list(self.groups.items()):
            if limits.max_uses and member.uses >= limits.max_uses and not member.leases:
                self.remove(name)
        if became_strict:
            newest = {m.task: n for n, m in sorted(self.groups.items(), key=lambda item: item[1].sequence)}
            for name in set(self.groups) - set(newest.values()):
                self.remove(name)
        self.evict()

    def rank(self, member: Member) -> tuple[float, int]:
        match self.limits.eviction:
            case "stalest":
                return member.version, member.sequence
            case "divergent":
                return -member.divergence, member.sequence
            case _:
                return 0, member.sequence

    def remove(self, name: str) -> None:
        del self.groups[name]
        self.cooling.discard(name)

    def drop_stale(self) -> None:
        if self.limits.max_staleness is not None:
            for name in [n for n, m in self.groups.items() if self.version - m.version > self.limits.max_staleness]:
                self.remove(name)

    def draw(self, batch: str, names: list[str]) -> None:
        for name in names:
            member = self.groups[name]
            member.uses += 1
            member.leases += 1
            if self.limits.cooldown:
                member.cool_until = self.draws + 1 + self.limits.cooldown
                self.cooling.add(name)
        self.draws += 1
        self.starved = 0
        self.plans[batch] = names
        self.open.add(batch)

    def release(self, batch: str, *, expired: bool) -> None:
        self.open.discard(batch)
        names = self.plans.pop(batch) if expired else self.plans[batch]
        self.draws -= expired
        for name in names:
            if (member := self.groups.get(name)) is None:
                continue
            member.leases -= 1
            if expired:
                member.uses -= 1
                member.cool_until = 0
                self.cooling.discard(name)
            if member.leases == 0 and self.limits.max_uses and member.uses >= self.limits.max_uses:
                self.remove(name)


class PoolMachine(RuleBasedStateMachine):
    """Every rule does the same to a real pool and to the model and compares what both say."""

    def __init__(self, server: ReplayServer, make_group) -> None:
        super().__init__()
        self.make_group = make_group
        self.raw = redis.Redis.from_url(server.url)
        self.url, self.namespace = server.url, f"model-{next(_pools)}"
        self.names = itertools.count()
        self.batches = itertools.count()

    @initialize(chosen=limits, seed=st.integers(0, 1000))
    def open_pool(self, chosen, seed):
        rules = ReplaySettings(priority_exponent=1.0, max_ahead=2, **chosen)
        self.pool = Replay(self.url, self.namespace, rules, seed=seed)
        self.pool.check()
        self.model = Model(limits=rules)

    @rule(
        size=st.integers(1, 3),
        lag=st.integers(-1, 4),
        priority=st.sampled_from([0.0, 0.5, 1.0, 1e9]),
        task=st.sampled_from("xyz"),
    )
    def push(self, size, lag, priority, task):
        name, version = f"g{next(self.names)}", max(self.model.version - lag, 0)
        group = self.make_group(name, size=size, version=version, task=task)
        member = Member(sequence=0, size=size, version=version, task=task, priority=priority)
        assert self.pool.try_push(group, priority=priority).status == self.model.push(name, member)

    @precondition(lambda self: self.model.known)
    @rule(data=st.data())
    def push_again(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.known)))
        assert self.pool.try_push(self.make_group(name), priority=1).status == "dup"

    @rule(groups=st.integers(1, 4))
    def sample(self, groups):
        batch, model = f"b{next(self.batches)}", self.model
        answer = self.pool.try_sample(batch, groups)
        model.drop_stale()
        model.cooling = {name for name in model.cooling if model.groups[name].cool_until > model.draws}
        eligible = model.eligible()
        gated = model.limits.update_frequency or not model.draws
        if gated and model.inserted < model.due:
            assert answer == Wait(reason="inserted", have=model.inserted, need=model.due)
        elif len(eligible) < groups:
            model.starved = groups
            assert answer == Wait(reason="eligible", have=len(eligible), need=groups)
        else:
            assert isinstance(answer, SamplePlan)
            names = [entry.group_id for entry in answer.entries]
            assert len(set(names)) == groups
            assert set(names) <= set(eligible)
            assert [entry.uses for entry in answer.entries] == [model.groups[name].uses for name in names]
            fresh = sum(not model.groups[name].uses for name in eligible)
            quota = min(int(model.limits.fresh_fraction * groups + 0.5), fresh)
            assert sum(not model.groups[name].uses for name in names) >= quota
            model.draw(batch, names)

    @precondition(lambda self: self.model.plans)
    @rule(data=st.data(), groups=st.integers(1, 4))
    def sample_again(self, data, groups):
        batch = data.draw(st.sampled_from(sorted(self.model.plans)))
        plan = self.pool.try_sample(batch, groups)
        assert plan.repeated
        assert [entry.group_id for entry in plan.entries] == self.model.plans[batch]

    @precondition(lambda self: self.model.open)
    @rule(data=st.data(), priority=st.sampled_from([0.0, 0.25, 2.0]), divergence=st.sampled_from([0.0, 0.5, 1.0]))
    def acknowledge(self, data, priority, divergence):
        batch, model = data.draw(st.sampled_from(sorted(self.model.open))), self.model
        names = model.plans[batch]
        told = dict.fromkeys(names[: data.draw(st.integers(0, len(names)))], priority)
        assert self.pool.ack(batch, priorities=told, divergences=dict.fromkeys(told, divergence)) == "ok"
        for name in told:
            if name in model.groups:
                model.groups[name].priority = priority
                model.groups[name].divergence = divergence
        model.release(batch, expired=False)
        assert self.pool.ack(batch, priorities=told) == "dup"

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def expire(self, data):
        batch = data.draw(st.sampled_from(sorted(self.model.open)))
        self.raw.zadd(f"{{{self.namespace}}}:ls", {batch: 1})
        assert self.pool.reap() == 1
        self.model.release(batch, expired=True)
        self.model.drop_stale()
        assert self.pool.ack(batch, priorities={}) == "late"

    @rule(capacity=st.sampled_from([6, 12]), newest=st.booleans(), uses=st.sampled_from([None, 1, 2]))
    def reopen(self, capacity, newest, uses):
        rules = dataclasses.replace(self.model.limits, capacity=capacity, newest_per_task=newest, max_uses=uses)
        self.pool.close()
        self.pool = Replay(self.url, self.namespace, rules, seed=1)
        self.pool.check()
        self.model.reopen(rules)

    @precondition(lambda self: self.model.groups)
    @rule()
    def drop_newer(self):
        newer = [name for name, member in self.model.groups.items() if member.version > self.model.version]
        assert self.pool.set_version(self.model.version, drop_newer=True) >= len(newer)
        self.model.drop_stale()
        for name in newer:
            self.model.remove(name)

    @rule(step=st.integers(-1, 2))
    def advance(self, step):
        self.model.version = max(self.model.version + step, 0)
        self.pool.set_version(self.model.version)
        self.model.drop_stale()

    @precondition(lambda self: self.model.groups)
    @rule(data=st.data())
    def prune(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.groups)))
        assert self.pool.prune([name, "unknown"]) == 1
        self.model.remove(name)

    @invariant()
    def pool_and_model_agree(self):
        model = self.model
        infos = {info.group_id: info for info in self.pool.entries()}
        assert {name: (i.trajectories, i.version, i.task_id, i.priority, i.uses, i.leases) for name, i in infos.items()} == {
            name: (m.size, m.version, m.task, m.priority, m.uses, m.leases) for name, m in model.groups.items()
        }
        assert all(
            group is not None and group.group_id == name
            for name, group in zip(infos, self.pool.fetch(list(infos)), strict=True)
        )
        stats = self.pool.stats()
        assert stats.groups == len(model.groups)
        assert stats.trajectories == sum(m.size for m in model.groups.values())
        assert stats.bytes == sum(info.bytes for info in infos.values())
        assert stats.eligible == len(model.indexed())
        assert (stats.leases, stats.batches, stats.inserted) == (len(model.open), model.draws, model.inserted)
        assert sum(stats.versions.values()) == stats.groups

    @invariant()
    def nothing_is_left_over(self):
        """No payload without a group, except until the lease ends that it was drawn under."""
        prefix = f"{{{self.namespace}}}:g:"
        for key in self.raw.scan_iter(match=prefix + "*", count=1000):
            if key.decode().removeprefix(prefix) not in self.model.groups:
                assert 0 < self.raw.pttl(key) <= self.model.limits.lease_s * 1000

    def teardown(self):
        if hasattr(self, "pool"):
            self.pool.clear()
            self.pool.close()
        self.raw.close()


def test_pool_behaves_as_the_model(server: ReplayServer, make_group) -> None:
    run_state_machine_as_test(
        lambda: PoolMachine(server, make_group), settings=settings(max_examples=200, stateful_step_count=40)
    )
