"""Credit: the advantage of every sampled token of a group, by the configured estimator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cacherl.learning_settings import AdvantageSection
from cacherl.trajectory import Trajectory, TrajectoryGroup
from learner import advantages
from learner.value import turn_advantages

Array = npt.NDArray[np.float64]


def token_advantages(group: TrajectoryGroup, settings: AdvantageSection, log_ratios: Array | None = None) -> list[Array]:
    """Advantages of each member's S sampled tokens, in order; a function of the stored group alone, so that a group keeps
    them however often it is replayed, unless `log_ratios` says how the policy has changed.

    Args:
        log_ratios: float64 [G], log of each member's sequence ratio current / sampling policy; for baseline 'weighted'.

    Returns:
        Per member, float64 [S].
    """
    members = group.trajectories
    whole = _of_members(group, settings, log_ratios)
    counts = [turn_lengths(member) for member in members]
    if settings.estimator != "gigpo":
        return [np.full(sum(lengths), value) for lengths, value in zip(counts, whole, strict=True)]
    turns = advantages.state_advantages(
        [turn_rewards(member) for member in members],
        [[turn.state_hash for turn in member.turns] for member in members],
        gamma=settings.gamma,
        normalize_std=settings.normalize_std,
        epsilon=settings.epsilon,
    )
    parts = zip(whole, turns, counts, strict=True)
    return [np.repeat(value + settings.step_weight * steps, lengths) for value, steps, lengths in parts]


def turn_lengths(trajectory: Trajectory) -> list[int]:
    """Sampled tokens of each turn."""
    return [stop - start for start, stop in (turn.completion for turn in trajectory.turns)]


def critic_advantages(trajectory: Trajectory, values: Array, settings: AdvantageSection) -> tuple[Array, Array]:
    """(advantages, value targets) of a trajectory's S sampled tokens by GAE over its turns; the target is ``A_k + V_k``.

    Args:
        values: float64 [S], the critic's estimate before each sampled token; a turn's is that before its first one.
    """
    lengths, before = turn_lengths(trajectory), _before_turns(trajectory, values)
    advantages = turn_advantages(turn_rewards(trajectory), before, gamma=settings.gamma, lam=settings.lam)
    return np.repeat(advantages, lengths), np.repeat(advantages + before, lengths)


def td_errors(trajectory: Trajectory, values: Array, gamma: float) -> Array:
    """float64 [K], ``r_k + gamma V_{k+1} - V_k`` of each turn by the critic's `values`, float64 [S] as above."""
    return turn_advantages(turn_rewards(trajectory), _before_turns(trajectory, values), gamma=gamma, lam=0.0)


def _before_turns(trajectory: Trajectory, values: Array) -> Array:
    lengths = turn_lengths(trajectory)
    starts = np.minimum(np.cumsum([0, *lengths[:-1]], dtype=np.int64), max(len(values) - 1, 0))
    return values[starts] if len(values) else np.zeros(len(lengths))


def turn_rewards(trajectory: Trajectory) -> list[float]:
    """Reward of each turn; the trajectory's own components belong to the last one."""
    rewards = [turn.reward for turn in trajectory.turns]
    if rewards:
        rewards[-1] += float(sum(trajectory.rewards.values()))
    return rewards


def member_advantages(values: Sequence[Array]) -> Array:
    """float64 [G], one advantage per member for its priority: mean |advantage| over its tokens, with the sign of their mean."""
    return np.array([np.copysign(np.abs(one).mean(), one.mean()) if len(one) else 0.0 for one in values], dtype=np.float64)


def _of_members(group: TrajectoryGroup, settings: AdvantageSection, log_ratios: Array | None) -> Array:
    returns, std, epsilon = group.returns, settings.normalize_std, settings.epsilon
    if settings.estimator == "loo":
        return advantages.leave_one_out(returns, normalize_std=std, epsilon=epsilon)
    foreign = np.array([member.foreign for member in group.trajectories])
    if settings.baseline == "separate":
        return advantages.separate_advantages(returns, foreign, normalize_std=std, epsilon=epsilon)
    if settings.baseline == "joint":
        return advantages.joint_advantages(returns, foreign, normalize_std=std, epsilon=epsilon)
    if settings.baseline == "weighted" and log_ratios is not None:
        return advantages.weighted_advantages(returns, log_ratios, normalize_std=std, epsilon=epsilon, min_ess=settings.min_ess)
    return advantages.group_advantages(returns, normalize_std=std, epsilon=epsilon)
