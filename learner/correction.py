"""Off-policy correction: weights of tokens that another policy sampled.

``w = p / mu``: p is the policy at the start of an update (proximal), mu the one that sampled (behaviour). The weights
multiply a token's loss outside the clip, where the replay importance weight multiplies it too; they have no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cacherl.learning_settings import CorrectionSection
from learner.batch import Row

Array = npt.NDArray[np.float64]
Gather = Callable[[Array], Array]

#: A product of ratios over a long row; its logarithm is limited here against overflow.
_MAX_LOG = 80.0


def truncated_weights(log_w: Array, cap: float) -> Array:
    """``min(w, C)``: truncated importance sampling; with a ratio to p inside the clip, decoupled PPO (arXiv 2110.00641,
    2505.24298)."""
    weights: Array = np.exp(np.minimum(log_w, math.log(cap)))
    return weights


def masked_weights(log_w: Array, cap: float) -> Array:
    """``w * 1[w <= C]``: tokens that have become much more likely are dropped instead of limited."""
    return np.where(log_w <= math.log(cap), np.exp(np.minimum(log_w, math.log(cap))), 0.0)


def sequence_weights(log_w: Array, cap: float, min_ratio: float) -> Array:
    """``min(prod w, C)`` on every token of a row; the row is dropped when one of its w is below `min_ratio`."""
    if len(log_w) and log_w.min() < math.log(min_ratio):
        return np.zeros_like(log_w)
    return np.full_like(log_w, math.exp(min(max(log_w.sum(), -_MAX_LOG), math.log(cap))))


def harmful(log_w: Array, advantages: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """bool [S], tokens whose step goes on in the direction in which the policies differ: A > 0 and w > 1, A < 0 and w < 1."""
    return np.asarray(log_w * advantages > 0)


def second_moment_threshold(squares: Array, limit: float) -> float:
    """The largest (log w)^2 to keep, so that the mean over the harmful tokens that are kept is at most `limit` (M2PO, arXiv
    2510.01161: the most extreme are masked first; those equal to the last one kept stay with it); infinite when none must go,
    negative when all must.

    Args:
        squares: (log w)^2 of the batch's harmful tokens.
    """
    ordered = np.sort(squares)
    means = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    kept = int(np.searchsorted(means, limit, side="right"))
    if kept == len(ordered):
        return math.inf
    return float(ordered[kept - 1]) if kept else -1.0


def within(log_w: Array, factor: float) -> bool:
    """Whether a row's geometric mean ratio lies in [1 / factor, factor] (the filter of FreshPER, arXiv 2604.16918)."""
    return not len(log_w) or abs(float(log_w.mean())) <= math.log(factor)


def divergence(log_ratios: Array, foreign: npt.NDArray[np.bool_]) -> float:
    """Mean |log ratio| over the members of a group that the policy played, in nats per token; 0 when it played none.

    Args:
        log_ratios: float64 [G], mean log-ratio of each member's tokens.
        foreign: bool [G], members that somebody else played: there is nothing that the policy could have left behind.
    """
    own = np.abs(log_ratios[~foreign])
    return float(own.mean()) if len(own) else 0.0


def correct(
    rows: Sequence[Row], proximal: Sequence[npt.NDArray[np.float32]], settings: CorrectionSection, gather: Gather
) -> list[Row]:
    """Rows with the correction's weights and, where it is decoupled, with a ratio to the proximal policy.

    Foreign rows stay as they are: nobody's ratio is known for them.

    Args:
        proximal: float32 [S] per row, log-probabilities at the update's start.
        gather: joins one-dimensional arrays over all ranks.
    """
    own = [index for index, row in enumerate(rows) if not row.foreign]
    log_w = {index: proximal[index].astype(np.float64) - rows[index].rollout_logprobs for index in own}
    weights = {index: _weights(log_w[index], settings) for index in own}
    if settings.method == "m2po":
        weights = _second_moment({index: (log_w[index], rows[index].advantages) for index in own}, settings, gather)
    if settings.keep_within is not None:
        weights = {index: weights[index] * within(log_w[index], settings.keep_within) for index in own}
    decoupled = settings.method in ("truncated", "masked", "sequence")
    corrected = list(rows)
    for index in own:
        corrected[index] = replace(
            rows[index],
            correction_weights=weights[index].astype(np.float32),
            proximal_logprobs=proximal[index] if decoupled else None,
        )
    return corrected


def _weights(log_w: Array, settings: CorrectionSection) -> Array:
    match settings.method:
        case "truncated":
            return truncated_weights(log_w, settings.cap)
        case "masked":
            return masked_weights(log_w, settings.cap)
        case "sequence":
            return sequence_weights(log_w, settings.cap, settings.min_ratio)
    return np.ones_like(log_w)


def _second_moment(
    tokens: dict[int, tuple[Array, npt.NDArray[np.float32]]], settings: CorrectionSection, gather: Gather
) -> dict[int, Array]:
    masks = {index: harmful(log_w, advantages) for index, (log_w, advantages) in tokens.items()}
    squares = {index: np.square(log_w) for index, (log_w, _) in tokens.items()}
    mine = [squares[index][mask] for index, mask in masks.items()]
    threshold = second_moment_threshold(gather(np.concatenate([np.zeros(0), *mine])), settings.second_moment)
    return {index: np.where(masks[index] & (squares[index] > threshold), 0.0, 1.0) for index in tokens}
