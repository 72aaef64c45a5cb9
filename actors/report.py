"""EpisodeSummary and GroupReport: what an actor tells the driver of finished episodes; tokens go to the replay service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import get_args

from cacherl.reward_settings import JUDGE, JUDGE_MISSING
from cacherl.trajectory import Tier, Trajectory

_CODE_ENDED = ("overtime", "memory", "crash")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """One episode in numbers.

    Attributes:
        outcome: raw verdict in [0, 1]; total_reward and reward_parts: as in `Trajectory`.
        turns, tool_calls, tool_errors: counts.
        sampled_tokens: tokens that an engine sampled; none where an agent without a model wrote them.
        end: 'terminated', or the reason of the truncation.
        tiers: (tool, tier) -> results that came from that tier; empty without a tool-result cache.
        code_ended: calls whose code the sandbox ended, for its time, its memory or a crash.
        explored: an explorer played it, so it says nothing about the policy.
    """

    family: str
    level: int
    outcome: float
    total_reward: float
    reward_parts: Mapping[str, float]
    turns: int
    sampled_tokens: int
    tool_calls: int
    tool_errors: int
    end: str
    tiers: Mapping[tuple[str, Tier], int] = field(default_factory=dict)
    code_ended: int = 0
    explored: bool = False

    @classmethod
    def of(cls, trajectory: Trajectory, *, explored: bool = False) -> EpisodeSummary:
        """The summary of a trajectory, which a member of a group that the policy left to an explorer may have made."""
        calls = [call for turn in trajectory.turns for call in turn.calls]
        return cls(
            family=trajectory.family,
            level=trajectory.level,
            outcome=trajectory.outcome,
            total_reward=trajectory.total_reward,
            reward_parts=trajectory.reward_parts,
            turns=len(trajectory.turns),
            sampled_tokens=0 if trajectory.foreign else trajectory.num_sampled,
            tool_calls=len(calls),
            tool_errors=sum(not call.ok for call in calls),
            end=trajectory.status.reason or trajectory.status.kind,
            tiers=Counter((call.name, call.tier) for call in calls if call.tier is not None),
            code_ended=sum(call.error in _CODE_ENDED for call in calls),
            explored=explored,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """What became of one dispatched group.

    Attributes:
        actor: name of the actor that played it.
        push: the replay service's answer ('ok', 'dup', 'stale'), or 'failed' when too few members finished.
        errors: why members failed, one message each.
    """

    group_id: str
    actor: str
    push: str
    episodes: tuple[EpisodeSummary, ...]
    errors: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[EpisodeSummary, ...]:
        """The episodes that the policy played as it is trained to."""
        return tuple(episode for episode in self.episodes if not episode.explored)


def exploration_metrics(reports: Sequence[GroupReport]) -> dict[str, float]:
    """How many of the episodes of `reports` an explorer played, and how well; nothing without episodes."""
    explored = [episode for report in reports for episode in report.episodes if episode.explored]
    count = sum(len(report.episodes) for report in reports)
    share = {"exploration/share": len(explored) / count} if count else {}
    return share | ({"exploration/success": fmean(e.outcome for e in explored)} if explored else {})


def rollout_metrics(reports: Sequence[GroupReport]) -> dict[str, float]:
    """Means over the policy's own episodes of `reports`, as far as there are any, and the number of failed ones.

    The shares of a tool-result cache are those of all episodes.
    """
    episodes = [episode for report in reports for episode in report.own]
    failed = {"rollout/failed": float(sum(len(report.errors) for report in reports))}
    if not episodes:
        return failed
    means = {
        "rollout/success": fmean(e.outcome for e in episodes),
        "rollout/return": fmean(e.total_reward for e in episodes),
        "rollout/turns": fmean(e.turns for e in episodes),
        "rollout/sampled_tokens": fmean(e.sampled_tokens for e in episodes),
        "rollout/tool_errors": fmean(e.tool_errors for e in episodes),
        "rollout/code_ended": fmean(e.code_ended for e in episodes),
        "rollout/truncated": fmean(e.end != "terminated" for e in episodes),
    }
    parts = sorted({name for episode in episodes for name in episode.reward_parts})
    if JUDGE in parts or JUDGE_MISSING in parts:
        means["rollout/judge_failed"] = fmean(JUDGE_MISSING in e.reward_parts for e in episodes)
    rewards = {f"reward/{name}": _mean_of_part(episodes, name) for name in parts}
    return means | failed | rewards | tool_cache_metrics([episode for report in reports for episode in report.episodes])


def _mean_of_part(episodes: Sequence[EpisodeSummary], name: str) -> float:
    """A part that an episode lacks is 0 there; but where the judge failed there is no score, which is not a score of 0."""
    if name in (JUDGE, JUDGE_MISSING):
        return fmean(e.reward_parts[name] for e in episodes if name in e.reward_parts)
    return fmean(e.reward_parts.get(name, 0.0) for e in episodes)


def tool_cache_metrics(episodes: Sequence[EpisodeSummary]) -> dict[str, float]:
    """Share of each tier among the tool results of `episodes`, of all tools and of each; nothing without such a cache."""
    counts: Counter[tuple[str, Tier]] = Counter()
    for episode in episodes:
        counts.update(episode.tiers)
    if not counts:
        return {}
    total = counts.total()
    overall = {tier: sum(count for (_, of), count in counts.items() if of == tier) for tier in get_args(Tier)}
    metrics = {"tool_cache/hit_rate": 1 - overall["live"] / total}
    metrics |= {f"tool_cache/{tier}": count / total for tier, count in overall.items()}
    for tool in sorted({tool for tool, _ in counts}):
        of_tool = sum(counts[tool, tier] for tier in get_args(Tier))
        metrics |= {f"tool_cache/tool/{tool}/{tier}": counts[tool, tier] / of_tool for tier in get_args(Tier)}
    return metrics


def eval_metrics(episodes: Sequence[EpisodeSummary]) -> dict[str, float]:
    """Held-out success, overall, per level and, where there are several, per family, with tool errors and length."""
    levels = sorted({episode.level for episode in episodes})
    families = sorted({episode.family for episode in episodes})
    return {
        "eval/success": fmean(e.outcome for e in episodes),
        "eval/tool_errors": fmean(e.tool_errors for e in episodes),
        "eval/length": fmean(e.sampled_tokens for e in episodes),
        **{f"eval/success/level{level}": fmean(e.outcome for e in episodes if e.level == level) for level in levels},
        **{
            f"eval/success/{family}": fmean(e.outcome for e in episodes if e.family == family)
            for family in families
            if len(families) > 1
        },
    }
