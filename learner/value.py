"""The critic's arithmetic: generalised advantages over turns, and the clipped value loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


def turn_advantages(rewards: Sequence[float], values: Array, *, gamma: float, lam: float) -> Array:
    """``A_k = delta_k + gamma lam A_{k+1}``, ``delta_k = r_k + gamma V_{k+1} - V_k`` (GAE, arXiv 1506.02438, equation 16), with
    turns as steps: tool results neither decay nor count. What follows the last turn is worth 0.

    Args:
        rewards: of each of the K turns; the trajectory's own belongs to the last.
        values: float64 [K], the critic's estimate before each turn.

    Returns:
        float64 [K].
    """
    advantages = np.zeros(len(rewards), dtype=np.float64)
    following, next_value = 0.0, 0.0
    for turn in reversed(range(len(rewards))):
        delta = rewards[turn] + gamma * next_value - values[turn]
        advantages[turn] = following = delta + gamma * lam * following
        next_value = values[turn]
    return advantages


def value_loss(values: Tensor, before: Tensor, targets: Tensor, clip_range: float) -> Tensor:
    """``max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2`` per token, so that a value which has moved by more than c
    in one update gains nothing from going on (PPO's reference implementation; arXiv 2005.12729, section 3)."""
    limited = before + (values - before).clamp(-clip_range, clip_range)
    return torch.maximum((values - targets).square(), (limited - targets).square()) / 2
