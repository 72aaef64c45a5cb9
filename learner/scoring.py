"""Scores of rows under a model, without a graph: what the proximal and the reference policy think of the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from cacherl.config import LearnerSection
from learner.batch import MicroBatch, Row, empty_micro_batch
from learner.engine import PolicyEngine
from learner.packing import cut


def score(engine: PolicyEngine, rows: Sequence[Row], settings: LearnerSection) -> list[npt.NDArray[np.float32]]:
    """Per row, float32 [S]: log-probability of each trained token under the current policy. All ranks take part."""
    scores: list[npt.NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(rows)
    for batch in filled_up(engine, cut(rows, settings)):
        with torch.no_grad():
            logprobs, _ = engine.forward(batch.to(engine.device))
        if len(batch.targets):
            for index, part in split_by_row(batch, logprobs.float().cpu().numpy()):
                scores[index] = part
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
