"""RunView: what a person watching a run is told, and its one-line form for logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run at one moment. None means: not known yet.

    Attributes:
        name: the run's name.
        phase: what the run is doing ('warm start', 'training', 'evaluating', ...).
        elapsed_s: seconds since it began.
        update, updates: optimizer steps done and planned.
        episodes: finished so far.
        tokens_per_s: sampled tokens a second, all actors.
        success: rolling share of successful training episodes, in [0, 1].
        held_out: greedy held-out success of every evaluation so far, oldest first.
        reward_parts: reward component -> mean weighted value per episode.
        variance_shares: reward component -> share of the variance within the last batch's groups.
        kl: nats per token, to the reference policy.
        staleness: learner version minus sampled version, mean over the last batch.
        pool_trajectories, pool_groups: how many the replay service holds.
        waiting_for: noun phrase of what the run is blocked on ('' when it is not).
        actors_alive, actors_total, learner_ranks: processes.
        notes: what a person should know, newest last ('actor-1 restarted').
    """

    name: str
    phase: str
    elapsed_s: float
    update: int
    updates: int
    episodes: int = 0
    tokens_per_s: float | None = None
    success: float | None = None
    held_out: tuple[float, ...] = ()
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    variance_shares: Mapping[str, float] = field(default_factory=dict)
    kl: float | None = None
    staleness: float | None = None
    pool_trajectories: int | None = None
    pool_groups: int | None = None
    waiting_for: str = ""
    actors_alive: int = 0
    actors_total: int = 0
    learner_ranks: int = 0
    notes: tuple[str, ...] = ()


def one_line(view: RunView) -> str:
    """The view as one line of plain ASCII; what is not known is left out."""
    parts = [f"[{duration(view.elapsed_s)}] {view.phase} {view.update}/{view.updates}"]
    if view.held_out:
        parts.append(f"held-out {view.held_out[0]:.2f} -> {view.held_out[-1]:.2f}")
    known = (
        ("success", view.success, ".2f"),
        ("tokens/s", view.tokens_per_s, ",.0f"),
        ("KL", view.kl, ".4f"),
        ("staleness", view.staleness, ".1f"),
        ("pool", view.pool_trajectories, ",d"),
    )
    parts += [f"{name} {value:{form}}" for name, value, form in known if value is not None]
    if view.variance_shares:
        driver = max(view.variance_shares, key=lambda name: view.variance_shares[name])
        parts.append(f"gradient {view.variance_shares[driver]:.0%} {driver}")
    parts.append(f"episodes {view.episodes:,}")
    parts.append(f"actors {view.actors_alive}/{view.actors_total}")
    if view.waiting_for:
        parts.append(f"waiting for {view.waiting_for}")
    return " | ".join(parts)


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours when there are any: '04:12', '1:04:12'."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars on the fixed scale [0, 1], so that two runs look alike only if they are."""
    steps = len(_BARS) - 1
    return "".join(_BARS[round(min(max(value, 0.0), 1.0) * steps)] for value in values[-width:])
