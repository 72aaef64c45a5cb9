"""The domination rule: nothing but success is worth pursuing for its own sake."""

from __future__ import annotations

from collections.abc import Iterable

from cacherl.errors import ConfigError
from cacherl.reward_settings import JUDGE, RewardSection
from rewards.base import Component, Reach
from rewards.tiers import exact_weights


def require_final_dominates(section: RewardSection, components: Iterable[Component], *, turns: int) -> None:
    """Refuse weights with which an episode of `turns` turns could earn more without success than success is worth, or would
    lose more by playing to the end, and doing nothing wrong, than success is worth.

    Fines for what a policy can avoid (misuse, repairs) are no toll. Where the answer is weighted by tier, the weights of the
    exact tier count: that worse tiers shift weight to the process is their purpose.

    Raises:
        ConfigError: they can, and reward.allow_domination does not accept it; lists every part's share.
    """
    if section.allow_domination:
        return
    final, process = exact_weights(section.tiers)
    worth = final * (section.success - section.failure)
    weights = {name: abs(weight) for name, weight in section.weights() if name in section.normalize}
    growth = {"step_penalty": section.adaptive.limit} if section.adaptive.rate else {}
    reaches = [
        (
            part.name,
            _normalized(part.reach(turns), weights.get(part.name)),
            growth.get(part.name, 1.0) * (final if part.name == JUDGE else process),
        )
        for part in components
    ]
    for kind, what in (("gain", "can earn"), ("toll", "can take from a faultless episode")):
        shares = _shares(reaches, kind)
        if sum(shares.values()) > worth + 1e-9:
            listed = ", ".join(f"{name} {value:g}" for name, value in shares.items())
            raise ConfigError(
                f"reward: the other parts {what} {sum(shares.values()):g} in env.max_turns {turns} turns ({listed}), success "
                f"is worth {worth:g}; lower their weights or env.max_turns, raise reward.success or set reward.allow_domination"
            )


def _normalized(reach: Reach, weight: float | None) -> Reach:
    """A normalised part reaches its weight, in the directions in which it reaches anything."""
    if weight is None:
        return reach
    return Reach(gain=weight if reach.gain else 0.0, toll=weight if reach.toll else 0.0)


def _shares(reaches: Iterable[tuple[str, Reach, float]], kind: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for name, reach, factor in reaches:
        value = factor * getattr(reach, kind)
        if value:
            shares[name] = shares.get(name, 0.0) + value
    return shares
