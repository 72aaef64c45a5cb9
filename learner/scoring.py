"""Scores of rows under a model, without a graph: what the proximal and the reference policy think of the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cacherl.learner_settings import LearnerSection
from learner.batch import MicroBatch, Row, empty_micro_batch
from learner.engine import PolicyEngine
from learner.packing import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Per row, float32 [S] each: log-probability of each trained token, and the critic's value before it (0 without one)."""

    logprobs: list[npt.NDArray[np.float32]]
    values: list[npt.NDArray[np.float32]]


def score(engine: PolicyEngine, rows: Sequence[Row], settings: LearnerSection) -> Scores:
    """Scores of the rows under the current policy. All ranks take part."""
    nothing = np.zeros(0, dtype=np.float32)
    scores = Scores(logprobs=[nothing] * len(rows), values=[nothing] * len(rows))
    for batch in filled_up(engine, cut(rows, settings)):
        with torch.no_grad():
            logprobs, _, values = engine.evaluate(batch.to(engine.device))
        if len(batch.targets):
            values = torch.zeros_like(logprobs) if values is None else values
            for kept, found in ((scores.logprobs, logprobs), (scores.values, values)):
                for index, part in split_by_row(batch, found.float().cpu().numpy()):
                    kept[index] = part
    return scores


def split_by_row(batch: MicroBatch, values: npt.NDArray[np.float32]) -> list[tuple[int, npt.NDArray[np.float32]]]:
    """(index of the row, its part of `values` [S]) for each row of a micro-batch."""
    parts = np.split(values, np.cumsum(batch.trained_per_row.cpu().numpy())[:-1])
    return list(zip(batch.indices.tolist(), parts, strict=True))


def filled_up(engine: PolicyEngine, batches: list[MicroBatch]) -> list[MicroBatch]:
    """This rank's micro-batches, with fillers up to the number that the ZeRO stage needs; at least one."""
    most = int(engine.maximum(torch.tensor([len(batches)], device=engine.device)))
    wanted = most if engine.needs_equal_counts else max(1, len(batches))
    return batches + [empty_micro_batch()] * (wanted - len(batches))
