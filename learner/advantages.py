"""Advantages of one group: how much better a trajectory, or a turn of it, did than its siblings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Limits of a member's ratio in `weighted_advantages`.
_RATIO_RANGE = (0.1, 10.0)


def group_advantages(returns: Array, *, normalize_std: bool, epsilon: float) -> Array:
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
    _check(returns)
    # Equal returns must give exactly zero, which subtracting a rounded mean does not guarantee.
    if np.ptp(returns) == 0:
        return np.zeros(len(returns), dtype=np.float64)
    centred: Array = returns - returns.mean()
    return centred / (returns.std() + epsilon) if normalize_std else centred


def leave_one_out(returns: Array, *, normalize_std: bool, epsilon: float) -> Array:
    """``A_i = R_i - mean of the other members' R = G / (G - 1) * (R_i - mean R)`` (RLOO, arXiv 2402.14740, equation 8).

    Arguments and errors as of `group_advantages`; `normalize_std` divides as there.
    """
    centred = group_advantages(returns, normalize_std=normalize_std, epsilon=epsilon)
    return centred * (len(returns) / max(len(returns) - 1, 1))


def separate_advantages(returns: Array, foreign: npt.NDArray[np.bool_], *, normalize_std: bool, epsilon: float) -> Array:
    """`group_advantages` of the policy's own members and of the foreign ones, each among themselves.

    Args:
        foreign: bool [G], members that the policy did not sample (demonstrations, random policies).
    """
    _check(returns)
    advantages = np.zeros(len(returns), dtype=np.float64)
    for part in (foreign, ~foreign):
        if part.any():
            advantages[part] = group_advantages(returns[part], normalize_std=normalize_std, epsilon=epsilon)
    return advantages


def joint_advantages(returns: Array, foreign: npt.NDArray[np.bool_], *, normalize_std: bool, epsilon: float) -> Array:
    """`group_advantages`, only centred when foreign members are among them.

    A success that stands in for a member of a failing group (ARPO, arXiv 2505.16282) would decide the standard deviation alone.
    """
    return group_advantages(returns, normalize_std=normalize_std and not foreign.any(), epsilon=epsilon)


def weighted_advantages(returns: Array, log_ratios: Array, *, normalize_std: bool, epsilon: float, min_ess: float) -> Array:
    """Baseline ``sum w_i R_i / sum w_i``, what the current policy would return, from the members that an older one sampled.

    ``w_i`` is the member's sequence ratio current / sampling policy, limited to [0.1, 10]; the spread that `normalize_std`
    divides by is weighted alike. Falls back to `group_advantages` when the weights' effective sample size
    ``(sum w)^2 / (G sum w^2)`` is below `min_ess`: then a few members would be the baseline of all.

    Args:
        log_ratios: float64 [G], log of the sequence ratio.
    """
    _check(returns)
    weights = np.exp(np.clip(log_ratios, *np.log(_RATIO_RANGE)))
    ess = weights.sum() ** 2 / (len(weights) * np.square(weights).sum())
    if ess < min_ess or np.ptp(returns) == 0:
        return group_advantages(returns, normalize_std=normalize_std, epsilon=epsilon)
    shares = weights / weights.sum()
    centred: Array = returns - shares @ returns
    return centred / (np.sqrt(shares @ np.square(centred)) + epsilon) if normalize_std else centred


def turn_returns(rewards: Sequence[float], gamma: float) -> Array:
    """Discounted return from each turn on, ``G_k = r_k + gamma G_{k+1}``, float64 [turns]."""
    returns = np.zeros(len(rewards), dtype=np.float64)
    following = 0.0
    for turn in reversed(range(len(rewards))):
        returns[turn] = following = rewards[turn] + gamma * following
    return returns


def state_advantages(
    rewards: Sequence[Sequence[float]],
    states: Sequence[Sequence[str]],
    *,
    gamma: float,
    normalize_std: bool,
    epsilon: float,
) -> list[Array]:
    """Advantage of each turn among all turns of the group that began in the same state (GiGPO, arXiv 2505.10978, equation 7).

    A turn whose state occurs once, or is unknown, gets 0.

    Args:
        rewards: per member, the reward of each of its turns; what the trajectory as a whole earned belongs to the last.
        states: per member, the hash of the state before each turn; '' if unknown.

    Returns:
        Per member, float64 [turns].
    """
    returns = [turn_returns(member, gamma) for member in rewards]
    advantages = [np.zeros(len(member), dtype=np.float64) for member in rewards]
    places: dict[str, list[tuple[int, int]]] = {}
    for member, hashes in enumerate(states):
        for turn, state in enumerate(hashes):
            if state:
                places.setdefault(state, []).append((member, turn))
    for same in places.values():
        values = np.array([returns[member][turn] for member, turn in same])
        for (member, turn), value in zip(
            same, group_advantages(values, normalize_std=normalize_std, epsilon=epsilon), strict=True
        ):
            advantages[member][turn] = value
    return advantages


def _check(returns: Array) -> None:
    if returns.ndim != 1 or not len(returns):
        raise ValueError(f"returns must be [G] with G >= 1, got shape {list(returns.shape)}")
    if not np.isfinite(returns).all():
        raise ValueError(f"returns must be finite, got {returns.tolist()}")
