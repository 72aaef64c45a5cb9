"""Group-relative advantages: how much better a trajectory did than its siblings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def group_advantages(returns: npt.NDArray[np.float64], *, normalize_std: bool, epsilon: float) -> npt.NDArray[np.float64]:
    """Advantage of each member of one group; they sum to zero.

    ``A_i = (R_i - mean R) / (std R + epsilon)`` with the population standard deviation (GRPO, arXiv 2402.03300,
    section 4.1.2), or ``A_i = R_i - mean R`` (Dr.GRPO, arXiv 2503.20783) without `normalize_std`. A group of one has
    no baseline: its advantage is 0, never its raw reward.

    Args:
        returns: float64 [G], total reward of each member.
        epsilon: added to the standard deviation, in reward units.

    Returns:
        float64 [G].

    Raises:
        ValueError: not one-dimensional, empty or not finite.
    """
    if returns.ndim != 1 or not len(returns):
        raise ValueError(f"returns must be [G] with G >= 1, got shape {list(returns.shape)}")
    if not np.isfinite(returns).all():
        raise ValueError(f"returns must be finite, got {returns.tolist()}")
    # Equal returns must give exactly zero, which subtracting a rounded mean does not guarantee.
    if np.ptp(returns) == 0:
        return np.zeros(len(returns), dtype=np.float64)
    centred: npt.NDArray[np.float64] = returns - returns.mean()
    return centred / (returns.std() + epsilon) if normalize_std else centred
