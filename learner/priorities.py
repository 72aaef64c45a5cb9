"""The replay priority that the learner gives a group once it has trained on it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def group_priority(advantages: npt.NDArray[np.float64], log_ratios: npt.NDArray[np.float64]) -> float:
    """``mean_i |A_i| * min(rho_i, 1)``: much to learn, and still something that the policy does.

    |A| is high for very good and very bad members alike (FreshPER, arXiv 2604.16918); a group without variance keeps
    priority 0. ``rho_i`` is the geometric-mean token ratio of the current policy over the behaviour policy, so a group
    whose tokens the policy no longer produces fades; one that it now produces more often is not favoured for it.

    Args:
        advantages: float64 [G].
        log_ratios: float64 [G], mean over a member's trained tokens of log policy - log behaviour; 0 without tokens.
    """
    return float(np.mean(np.abs(advantages) * np.exp(np.minimum(log_ratios, 0.0))))
