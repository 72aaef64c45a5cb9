"""How much the answer counts, by the worst tier of the tool results that it rests on."""

from __future__ import annotations

from cacherl.reward_settings import TierSection
from cacherl.trajectory import Tier, Trajectory

#: From best to worst. A live result is as good as one from the exact tier; so is one without a tier, for want of a cache.
_RANK: dict[Tier | None, int] = {None: 0, "live": 0, "exact": 0, "normalised": 1, "best_effort": 2}


def exact_weights(section: TierSection) -> tuple[float, float]:
    """(weight of the answer, of the process) of an episode whose results are all of the exact tier; for these, nothing
    may outweigh success. Without `enabled` both count in full."""
    return (section.exact, 1 - section.exact) if section.enabled else (1.0, 1.0)


def answer_weight(trajectory: Trajectory, section: TierSection) -> float:
    """alpha of ``alpha * answer + (1 - alpha) * process`` (CacheRL, arXiv 2606.14179); the other parts are the process."""
    worst = max((_RANK[call.tier] for turn in trajectory.turns for call in turn.calls), default=0)
    return (section.exact, section.normalised, section.best_effort)[worst]
