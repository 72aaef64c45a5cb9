"""The losses in float64, one token after another, with gradients written by hand: what the learner's tests compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from cacherl.learning_settings import KLSection, LossSection
from learner.batch import MicroBatch, Row
from learner.loss import Totals
from learner_data import row


def make_rows(count: int = 6, *, seed: int = 3, foreign: int = 0) -> list[Row]:
    """Rows of different lengths and importance weights, with proximal log-probabilities, correction weights and advantages of
    their own for every token; every second one replayed, the last `foreign` ones foreign."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        made = row(rng, int(rng.integers(12, 30)), int(rng.integers(1, 9)), is_weight=0.25 + 0.1 * index)
        tokens = len(made.positions)
        extra = {
            "proximal_logprobs": (made.rollout_logprobs + 0.3 * rng.standard_normal(tokens)).astype(np.float32),
            "correction_weights": rng.choice([0.0, 0.5, 1.0, 1.5], tokens).astype(np.float32),
            "replayed": index % 2 == 1,
            "foreign": index >= count - foreign,
        }
        rows.append(replace(made, **extra))
    return rows


def totals_of(rows: Sequence[Row]) -> Totals:
    """Of all rows together."""
    return Totals(tokens=sum(len(one.positions) for one in rows), sequences=len(rows))


def policy_of(index: int, one: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(log-probabilities, entropies, reference log-probabilities) of row `index`, float32 [S] each."""
    rng = np.random.default_rng([0, index])
    count = len(one.positions)
    drawn = (
        one.rollout_logprobs + 0.5 * rng.standard_normal(count), rng.uniform(0, 3, count), -4 + rng.standard_normal(count)
    )  # fmt: skip
    return tuple(values.astype(np.float32) for values in drawn)  # type: ignore[return-value]


def policy_tensors(batch: MicroBatch, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`policy_of` for a micro-batch's rows, however the batch was cut; the first two with gradients."""
    parts = zip(*(policy_of(index, rows[index]) for index in batch.indices.tolist()), strict=True)
    logprobs, entropies, reference = (torch.from_numpy(np.concatenate(part)) for part in parts)
    return logprobs.requires_grad_(), entropies.requires_grad_(), reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The loss of the whole batch and its gradients, the latter per row."""

    loss: float
    logprob_grads: list[np.ndarray]
    entropy_grads: list[np.ndarray]


def surrogate(
    ratios: np.ndarray, logs: np.ndarray, advantages: np.ndarray, one: Row, settings: LossSection
) -> tuple[np.ndarray, np.ndarray]:
    """(value, derivative by the log-ratio) of each token's objective."""
    values, slopes = np.zeros(len(ratios)), np.zeros(len(ratios))
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    geometric = np.exp(logs.mean())
    for t, (ratio, advantage) in enumerate(zip(ratios, advantages, strict=True)):
        if one.foreign:
            gamma = settings.foreign_gamma
            values[t] = ratio / (ratio + gamma) * advantage
            slopes[t] = ratio * gamma / (ratio + gamma) ** 2 * advantage
            continue
        if settings.name == "cispo":
            weight = min(max(ratio, low), high)
            values[t], slopes[t] = weight * advantage * logs[t], weight * advantage
            continue
        r = geometric if settings.name == "gspo" else ratio
        free, limited = r * advantage, min(max(r, low), high) * advantage
        values[t], slopes[t] = min(free, limited), r * advantage if free <= limited else 0.0
        if settings.dual_clip is not None and advantage < 0 and values[t] < settings.dual_clip * advantage:
            values[t], slopes[t] = settings.dual_clip * advantage, 0.0
    return values, slopes


def kl_of(distance: float, ratio: float, one: Row, settings: KLSection) -> tuple[float, float]:
    """(value, derivative) of one token's KL estimate, what it counts included."""
    value, slope = {
        "k1": (distance, 1.0),
        "k2": (distance**2 / 2, distance),
        "k3": (np.exp(-distance) - 1 + distance, 1 - np.exp(-distance)),
    }[settings.estimator]
    factor = 1.0
    if one.replayed:
        factor = {"include": 1.0, "weighted": min(ratio, 10.0), "exclude": 0.0}[settings.replayed]
    if one.foreign:
        factor = 0.0
    return factor * value, factor * slope


def expected(rows: Sequence[Row], settings: LossSection, kl: KLSection | None = None) -> Expected:
    """The whole batch in one piece."""
    tokens, total = sum(len(one.positions) for one in rows), 0.0
    grads, entropy_grads = [], []
    for index, one in enumerate(rows):
        new, entropy, reference = (values.astype(np.float64) for values in policy_of(index, one))
        logs = new - one.proximal_logprobs
        share = {
            "token": 1 / tokens,
            "sequence": 1 / (len(rows) * len(new)),
            "constant": 1 / (len(rows) * (settings.constant_length or 1)),
        }[settings.aggregation]
        weight = float(np.float32(one.is_weight)) * share
        values, slopes = surrogate(np.exp(logs), logs, one.advantages.astype(np.float64), one, settings)
        correction = one.correction_weights.astype(np.float64)
        total -= weight * float(correction @ values) + weight * settings.entropy_coef * entropy.sum()
        grad = -weight * correction * slopes
        for t in range(len(new)) if kl is not None else ():
            value, slope = kl_of(new[t] - reference[t], float(np.exp(new[t] - one.rollout_logprobs[t])), one, kl)
            total += weight * kl.coef * value
            grad[t] += weight * kl.coef * slope
        grads.append(grad)
        entropy_grads.append(np.full(len(new), -weight * settings.entropy_coef))
    return Expected(loss=total, logprob_grads=grads, entropy_grads=entropy_grads)
