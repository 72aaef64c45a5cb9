"""SupervisedTrainer: the warm start, imitation of demonstrations before any reinforcement learning."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from cacherl.learner_settings import LearnerSection, WarmStartSection
from learner.batch import MicroBatch, empty_micro_batch, partition
from learner.demonstrations import Demonstrations
from learner.engine import PolicyEngine
from learner.loss import Totals, likelihood_loss
from learner.packing import cut

_WARMUP_SHARE = 0.05
_FINAL_SHARE = 0.1


def learning_rate(update: int, updates: int, peak: float) -> float:
    """Linear warm-up over the first 5 % of `updates`, then a cosine down to a tenth of `peak`."""
    warmup = max(1, round(updates * _WARMUP_SHARE))
    if update < warmup:
        return peak * (update + 1) / warmup
    progress = (update - warmup) / max(1, updates - warmup)
    return peak * (_FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress)))


def batches(count: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of indices below `count`: one seeded permutation after another, cut without regard to its end."""
    epoch, queue = 0, []  # type: tuple[int, list[int]]
    while True:
        while len(queue) < batch_size:
            queue.extend(np.random.default_rng([seed, epoch]).permutation(count).tolist())
            epoch += 1
        yield queue[:batch_size]
        del queue[:batch_size]


class SupervisedTrainer:
    """Minimises the negative log-likelihood of demonstrations, one mean over all tokens of a batch.

    Every rank holds all demonstrations, draws the same batches and trains on its own share of each.
    """

    def __init__(
        self,
        engine: PolicyEngine,
        demonstrations: Demonstrations,
        settings: WarmStartSection,
        *,
        learner: LearnerSection,
        seed: int,
        rank: int,
    ) -> None:
        self._engine = engine
        self._demonstrations = demonstrations
        self._settings = settings
        self._learner = learner
        self._batches = batches(len(demonstrations), settings.batch_size, seed)
        self._rank = rank
        self._done = 0

    def run(self, updates: int) -> list[float]:
        """Make `updates` optimizer steps.

        Returns:
            Mean negative log-likelihood of each step's batch before the step, in nats per token; the same on all ranks.
        """
        return [self._update() for _ in range(updates)]

    def _update(self) -> float:
        rows = [self._demonstrations.row(index) for index in next(self._batches)]
        totals = Totals(tokens=sum(len(row.positions) for row in rows), sequences=len(rows))
        shards = partition([len(row) for row in rows], self._engine.world)
        parts = [cut([rows[index] for index in shard], self._learner) for shard in shards]
        count = max(map(len, parts)) if self._engine.needs_equal_counts else max(1, len(parts[self._rank]))
        mine = parts[self._rank] + [empty_micro_batch()] * (count - len(parts[self._rank]))
        return self._step(mine, totals)

    def _step(self, mine: list[MicroBatch], totals: Totals) -> float:
        loss_sum = torch.zeros(1, dtype=torch.float64, device=self._engine.device)
        for batch in mine:
            logprobs, _ = self._engine.forward(batch.to(self._engine.device))
            loss = likelihood_loss(logprobs, totals)
            self._engine.backward(loss)
            loss_sum += loss.detach()
        self._engine.step(learning_rate(self._done, self._settings.updates, self._settings.lr))
        self._done += 1
        return float(self._engine.add_up(loss_sum))
