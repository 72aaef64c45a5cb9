"""What was drawn, and what a caller waits for when nothing could be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cacherl.errors import ReplayError
from cacherl.replay_settings import ReplaySettings
from replay_service import scripts

PushStatus = Literal["ok", "dup", "stale", "throttle"]
AckStatus = Literal["ok", "dup", "late"]
RescoreStatus = Literal["ok", "done", "leased", "dropped", "gone"]
WaitReason = Literal["inserted", "eligible", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What became of a pushed group.

    Attributes:
        status: 'ok': stored (or counted, at priority 0); 'dup': known already; 'stale': its policy version is too old, it was
            dropped; 'throttle': the learner must catch up first, nothing was stored.
        evicted: groups that made room.
        have, need: the two numbers behind 'stale' (versions) and 'throttle' (trajectories), else 0.
    """

    status: PushStatus
    evicted: int = 0
    have: int = 0
    need: int = 0


class PushError(ReplayError):
    """Groups that were pushed together failed, all or some of them.

    Args:
        message: names each failed group and why.
        results: of the groups as they were pushed; None for a failed one.
    """

    def __init__(self, message: str, results: Sequence[PushResult | None]) -> None:
        super().__init__(message)
        self.results = tuple(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why no batch can be drawn yet: `have` of `need`."""

    reason: WaitReason
    have: int
    need: int

    def __str__(self) -> str:
        match self.reason:
            case "inserted":
                return (
                    f"actors to insert trajectories ({self.have} of {self.need} that warmup_steps and update_frequency ask for)"
                )
            case "eligible":
                return f"groups that may be sampled ({self.have} of {self.need})"
            case "stale":
                return f"the removal of stale groups ({self.have} left)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """One drawn group.

    Attributes:
        priority: p as pushed or last acknowledged.
        probability: chance of this group in a single draw, its share of the pool's mass at the time.
        inclusion: chance of it to be anywhere in the batch, in (0, 1]; exact for fresh_fraction 0.
        is_weight: factor of the loss against the sampling bias, in (0, 1], 1 at the batch's least likely group.
        version, max_version: lowest and highest policy version of its tokens.
        uses: earlier draws.
    """

    group_id: str
    priority: float
    probability: float
    inclusion: float
    is_weight: float
    version: int
    max_version: int
    trajectories: int
    tokens: int
    bytes: int
    uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """A leased batch; every rank that asks for the same batch gets the same one.

    Attributes:
        pool_groups: groups that could have been drawn.
        learner_version: the version that staleness was judged against.
        repeated: the batch had been drawn before, by another rank or an earlier attempt; not part of equality.
    """

    batch_id: str
    entries: tuple[PlanEntry, ...]
    pool_groups: int
    learner_version: int
    repeated: bool = field(compare=False)

    def __len__(self) -> int:
        return len(self.entries)


def importance_weights(chances: Sequence[float], beta: float) -> list[float]:
    """(N P_i)^-beta / max_j (N P_j)^-beta over a batch (PER, 1511.05952, section 3.4).

    Args:
        chances: P of each drawn group, in any common unit: N and the normaliser cancel.
        beta: 0 gives 1 for all.
    """
    least = min(chances, default=1.0)
    return [(chance / least) ** -beta for chance in chances]


def inclusion_probability(mass: float, exposure: float) -> float:
    """Chance that a group's event fell within the exposure up to the first event that was not drawn: 1 - exp(-mass * exposure).

    A negative exposure says that nothing was left undrawn.
    """
    return 1.0 if exposure < 0 else -math.expm1(-mass * exposure)


def annealed_beta(settings: ReplaySettings, batch_number: int) -> float:
    """The importance exponent of the pool's n-th batch; 0 when importance sampling is off."""
    if not settings.importance_sampling:
        return 0.0
    if settings.importance_beta_final is None:
        return settings.importance_beta
    progress = min(batch_number / settings.importance_anneal, 1.0)
    return settings.importance_beta + progress * (settings.importance_beta_final - settings.importance_beta)


def read_plan(batch_id: str, plan: Mapping[bytes, Any], settings: ReplaySettings, *, repeated: bool) -> SamplePlan:
    """Build the plan from what sample.lua stored."""
    rows, total = plan[b"entries"], plan[b"mass"]
    single = [min(row[1] / total, 1.0) for row in rows]
    inclusion = [inclusion_probability(row[1], row[9]) for row in rows]
    base = inclusion if settings.importance_base == "inclusion" else single
    weights = importance_weights(base, annealed_beta(settings, plan[b"number"]))
    return SamplePlan(
        batch_id=batch_id,
        entries=tuple(_entry(*parts) for parts in zip(rows, single, inclusion, weights, strict=True)),
        pool_groups=plan[b"pool"],
        learner_version=plan[b"version"],
        repeated=repeated,
    )


def _entry(row: Sequence[Any], probability: float, inclusion: float, is_weight: float) -> PlanEntry:
    gid, _, priority, version, highest, trajectories, tokens, size, uses, _ = row
    return PlanEntry(
        group_id=scripts.text(gid),
        priority=float(priority),
        probability=probability,
        inclusion=inclusion,
        is_weight=is_weight,
        version=version,
        max_version=highest,
        trajectories=trajectories,
        tokens=tokens,
        bytes=size,
        uses=uses,
    )
