"""What the parts of the reward contribute to a batch: their size, and how much of the policy gradient each of them drives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cacherl.learning_settings import AdvantageSection
from cacherl.reward_settings import JUDGE, JUDGE_MISSING
from cacherl.trajectory import Trajectory, TrajectoryGroup

#: Component -> its weighted value in each member of a group, float64 [G].
GroupParts = Mapping[str, npt.NDArray[np.float64]]

#: Returns of one group that differ by no more than this differ by rounding only.
_ROUNDING = 1e-9


def compared_parts(group: TrajectoryGroup, settings: AdvantageSection) -> list[GroupParts]:
    """The group's reward by component, of those members apart whose returns are compared with each other.

    That is the whole group, or with baseline 'separate' the policy's members and the foreign ones: between a demonstration
    and the policy's attempts there is a difference that moves nothing, which would hide what does.
    """
    members = group.trajectories
    if settings.baseline != "separate":
        return [group_parts(members)]
    parts = ([member for member in members if member.foreign == foreign] for foreign in (False, True))
    return [group_parts(part) for part in parts if part]


def group_parts(members: Sequence[Trajectory]) -> GroupParts:
    """The members' rewards by component; a component that a member lacks is 0 there.

    The judge's score and what stands in for a missing one exclude each other; the one that a member lacks is NaN, since no
    score is not a score of 0.
    """
    rewards = [member.reward_parts for member in members]
    names = dict.fromkeys(name for parts in rewards for name in parts)
    absent = {JUDGE: math.nan, JUDGE_MISSING: math.nan}
    return {name: np.array([parts.get(name, absent.get(name, 0.0)) for parts in rewards]) for name in names}


def part_metrics(groups: Sequence[GroupParts], *, normalize_std: bool) -> dict[str, float]:
    """'reward_batch/*' of a batch: mean, min, max per trajectory, share of the total, share of the variance within groups.

    The share of the total is that of the absolute values, so that a penalty counts as much as a payment.
    """
    names = sorted({name for parts in groups for name in parts})
    whole = {name: np.concatenate([_column(parts, name) for parts in groups]) for name in names}
    columns = {name: column[~np.isnan(column)] for name, column in whole.items()}
    total = sum(float(np.abs(column).sum()) for column in columns.values())
    values: dict[str, float] = {}
    for name, column in columns.items():
        values[f"reward_batch/mean/{name}"] = float(column.mean())
        values[f"reward_batch/min/{name}"] = float(column.min())
        values[f"reward_batch/max/{name}"] = float(column.max())
        values[f"reward_batch/share/{name}"] = float(np.abs(column).sum()) / total if total else 0.0
    shares = variance_shares(groups, normalize_std=normalize_std)
    return values | {f"reward_batch/variance_share/{name}": share for name, share in shares.items()}


def variance_shares(groups: Sequence[GroupParts], *, normalize_std: bool) -> dict[str, float]:
    """Component -> its share of the variance of the return within groups; the shares add up to 1.

    ``share_c = sum_g w_g Cov_g(c, R) / sum_g w_g Var_g(R)``, R being the sum of the components. Group-relative advantages
    are ``R_i - mean R`` up to a factor per group, so this is the share of the squared advantages that c accounts for, with
    ``w_g = 1 / Var_g(R)`` where they are divided by the group's standard deviation and ``w_g = 1`` where they are not. A
    component that pulls against the others has a negative share.

    Returns:
        empty when no group's returns differ.
    """
    weighted: dict[str, float] = {}
    whole = 0.0
    for group in groups:
        parts = {name: np.nan_to_num(column, nan=0.0) for name, column in group.items()}
        returns = np.sum(list(parts.values()), axis=0)
        if np.ptp(returns) <= _ROUNDING:
            continue
        centred = returns - returns.mean()
        weight = 1.0 / float(centred @ centred) if normalize_std else 1.0
        whole += weight * float(centred @ centred)
        for name, column in parts.items():
            weighted[name] = weighted.get(name, 0.0) + weight * float((column - column.mean()) @ centred)
    return {name: value / whole for name, value in weighted.items()}


def _column(parts: GroupParts, name: str) -> npt.NDArray[np.float64]:
    size = len(next(iter(parts.values())))
    return parts[name] if name in parts else np.full(size, math.nan if name in (JUDGE, JUDGE_MISSING) else 0.0)
