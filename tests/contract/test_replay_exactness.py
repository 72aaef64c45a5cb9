"""What is drawn follows p ** exponent exactly, while priorities change and groups come and go."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest

_groups = itertools.count()

POOL = 300
BATCH = 12
BATCHES_BETWEEN_CHANGES = 25


def band99(degrees: float) -> tuple[float, float]:
    """Limits of chi-square per degree of freedom in 99 % of cases (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return (1 - spread - 2.576 * math.sqrt(spread)) ** 3, (1 - spread + 2.576 * math.sqrt(spread)) ** 3


class Tally:
    """Counts against the conditional chances of successive sampling without replacement, per cell of equal chance.

    Each draw's chances follow from the weights and from what the batch has already taken. Groups live too short to be counted
    one by one, hence cells: the groups, sorted by weight and then by age, are cut into `cells` runs of nearly equal mass.
    """

    def __init__(self, cells: int) -> None:
        self.observed = np.zeros(cells)
        self.expected = np.zeros(cells)
        self.squares = np.zeros(cells)

    def add(self, weights: np.ndarray, order: list[int]) -> None:
        cells = len(self.observed)
        left = weights.copy()
        middle = np.cumsum(weights) - weights / 2
        cell_of = np.minimum((middle / weights.sum() * cells).astype(int), cells - 1)
        for drawn in order:
            chances = np.bincount(cell_of, weights=left, minlength=cells) / left.sum()
            self.expected += chances
            self.squares += chances**2
            self.observed[cell_of[drawn]] += 1
            left[drawn] = 0

    @property
    def chi_square_per_degree(self) -> tuple[float, float]:
        """The statistic over its mean, and that mean: sum of Var / E over cells."""
        used = self.expected > 0
        mean = float(((self.expected - self.squares)[used] / self.expected[used]).sum())
        statistic = float(((self.observed - self.expected)[used] ** 2 / self.expected[used]).sum())
        return statistic / mean, mean


def draw_and_compare(pool, make_group, rng, *, skewed, exponent, draws):
    """Draw, change a twentieth of the priorities, replace a twentieth of the groups, repeat."""

    def priority():
        return float(rng.pareto(1.1) + 0.01 if skewed else 1.0)

    held: dict[str, float] = {}

    def push():
        name = f"x{next(_groups)}"
        held[name] = priority()
        pool.push(make_group(name, size=1), priority=held[name])
        if len(held) > POOL:
            del held[next(iter(held))]  # the oldest, as the pool does

    for _ in range(POOL):
        push()
    tally = Tally(60)
    for step in range(draws // BATCH):
        if step % BATCHES_BETWEEN_CHANGES == 0:
            changed = {name: priority() for name in rng.choice(list(held), POOL // 20, replace=False)}
            pool.sample(f"u{step}", 1)
            assert pool.ack(f"u{step}", priorities=changed) == "ok"
            held |= changed
            for _ in range(POOL // 20):
                push()
            names = sorted(held, key=lambda name: held[name])  # stable: the older first among equals
            place = {name: index for index, name in enumerate(names)}
            weights = np.array([held[name] for name in names]) ** exponent
        plan = pool.sample(f"b{step}", BATCH)
        tally.add(weights, [place[entry.group_id] for entry in plan.entries])
        pool.ack(f"b{step}", priorities={})
    return tally.chi_square_per_degree


@pytest.mark.parametrize("endpoints", [1, 3])
@pytest.mark.parametrize("skewed", [False, True], ids=["uniform", "skewed"])
@pytest.mark.parametrize("draws", [12_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_draws_follow_the_priorities(server, shard_servers, make_pool, make_group, endpoints, skewed, draws, capsys):
    shards = tuple(each.url for each in (server, *shard_servers)) if endpoints == 3 else ()
    pool = make_pool(url=server.url, shards=shards, capacity=POOL, max_ahead=POOL, priority_exponent=0.6, seed=endpoints)
    rng = np.random.default_rng(10 + endpoints)
    ratio, degrees = draw_and_compare(pool, make_group, rng, skewed=skewed, exponent=0.6, draws=draws)
    low, high = band99(degrees)
    with capsys.disabled():
        kind = "skewed" if skewed else "uniform"
        sys.stdout.write(
            f"\n{draws} draws, {kind}, {endpoints} endpoints: chi2/df {ratio:.3f}, 99 % band {low:.3f}..{high:.3f}\n"
        )
    assert low < ratio < high


def test_the_comparison_notices_a_wrong_exponent(make_pool, make_group):
    pool = make_pool(capacity=POOL, max_ahead=POOL, priority_exponent=0.6, seed=7)
    ratio, degrees = draw_and_compare(pool, make_group, np.random.default_rng(1), skewed=True, exponent=0.7, draws=12_000)
    assert ratio > 2 * band99(degrees)[1]


@pytest.mark.parametrize("batch", [1, 16])
def test_importance_weighted_means_are_unbiased(make_pool, make_group, batch):
    """The mean over the pool of a value that grows with the priority, estimated from what was drawn."""
    pool = make_pool(priority_exponent=1.0, seed=3)
    rng = np.random.default_rng(2)
    values = {f"g{i}": float(value) for i, value in enumerate(rng.pareto(2.5, 64) + 0.05)}
    for name, value in values.items():
        pool.push(make_group(name, size=1), priority=value)
    single, inclusive, naive = [], [], []
    for step in range(1500):
        entries = pool.sample(f"b{step}", batch).entries
        pool.ack(f"b{step}", priorities={})
        squared = [values[e.group_id] ** 2 for e in entries]
        single.append(np.mean([f / (64 * e.probability) for f, e in zip(squared, entries, strict=True)]))
        inclusive.append(sum(f / e.inclusion for f, e in zip(squared, entries, strict=True)) / 64)
        naive.append(np.mean(squared))
    true = np.mean(np.square(list(values.values())))

    def off(estimates):
        return (np.mean(estimates) - true) / (np.std(estimates) / math.sqrt(len(estimates)))

    assert abs(off(single if batch == 1 else inclusive)) < 3.3
    assert off(naive) > 10
