"""`Composer`: all components of the configured reward, weighed, bounded and added up by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain

from cacherl.config import RunConfig
from cacherl.reward_settings import FINAL, JUDGE, JUDGE_MISSING, SHAPING, RewardSection
from cacherl.trajectory import Trajectory
from rewards.base import Blocking, Component, GroupComponent, TrajectoryComponent, TurnComponent, steps_of
from rewards.catalogue import build_components
from rewards.domination import require_final_dominates
from rewards.tiers import answer_weight, exact_weights

#: Parts that speak of the answer; the others are the process.
_ANSWER = frozenset({FINAL, JUDGE})
_ARRAYS = ("token_ids", "loss_mask", "rollout_logprobs", "policy_versions")


@dataclass(slots=True)
class _Parts:
    """One member's reward under construction: component -> value, for each turn and for the whole."""

    turns: list[dict[str, float]]
    whole: dict[str, float]

    def total(self, name: str) -> float:
        return math.fsum(parts.get(key, 0.0) for parts in (self.whole, *self.turns) for key in _booked_as(name))

    def multiply(self, name: str, factor: float) -> None:
        for parts in (self.whole, *self.turns):
            for key in _booked_as(name) & parts.keys():
                parts[key] *= factor

    @property
    def names(self) -> set[str]:
        return {JUDGE if name == JUDGE_MISSING else name for name in chain(self.whole, *self.turns)}


class Composer:
    """Scores the siblings of a group. Without state: the same trajectories and scales always give the same parts.

    In this order: every component values every turn and trajectory; parts in `normalize` are divided by their largest
    magnitude in the group; scales of the schedule apply; a turn's sum is bounded by `turn_bound`; what the auxiliary parts of
    an episode add up to is bounded by the worth of success, also as the exact tier weighs both; the weights by tier apply. A
    bound shrinks all parts concerned by one factor, so that their proportions stay. Shaping is exempt from all of these,
    because any of them would void it.

    Args:
        section: bounds, tiers and what to normalise.
        components: two that value the same thing must have distinct names.
    """

    def __init__(self, section: RewardSection, components: Sequence[Component]) -> None:
        self._section = section
        self._weights = dict(section.weights())
        self._turn = [part for part in components if isinstance(part, TurnComponent)]
        self._trajectory = [part for part in components if isinstance(part, TrajectoryComponent)]
        self._group = [part for part in components if isinstance(part, GroupComponent)]
        for kind in (self._turn, self._trajectory, self._group):
            names = [part.name for part in kind]
            if len(set(names)) != len(names):
                raise ValueError(f"reward components must have distinct names, got {names}")
        self.blocking = any(isinstance(part, Blocking) and part.blocking for part in components)

    @classmethod
    def from_config(cls, config: RunConfig, tool_costs: Mapping[str, float] | None = None) -> Composer:
        """The components that `config.reward` weighs.

        Args:
            tool_costs: tool -> declared cost of a call.

        Raises:
            ConfigError: a component cannot be made, or the others could outweigh the final one.
        """
        components = build_components(config, tool_costs or {})
        require_final_dominates(config.reward, components, turns=config.env.max_turns)
        return cls(config.reward, components)

    def score(self, members: Sequence[Trajectory], scales: Mapping[str, float] | None = None) -> tuple[Trajectory, ...]:
        """The same trajectories with their rewards, whatever rewards they had.

        Args:
            members: finished siblings of one group.
            scales: component -> factor of its weight at the moment; 1 where there is none.

        Raises:
            ConfigError: a component cannot work with these trajectories.
            ValueError: a component returned something else than a finite number.
        """
        shown = [_shown(member) for member in members]
        scored = [self._valued(member) for member in shown]
        for component in self._group:
            for parts, values in zip(scored, component.group(shown), strict=True):
                parts.whole.update(values)
        for name in self._section.normalize:
            _normalize(scored, name, abs(self._weights[name]))
        return tuple(self._bounded(member, parts, scales or {}) for member, parts in zip(members, scored, strict=True))

    def _valued(self, member: Trajectory) -> _Parts:
        return _Parts(
            turns=[{part.name: part.turn(step) for part in self._turn} for step in steps_of(member)],
            whole={part.name: part.trajectory(member) for part in self._trajectory},
        )

    def _bounded(self, member: Trajectory, parts: _Parts, scales: Mapping[str, float]) -> Trajectory:
        for name, factor in scales.items():
            parts.multiply(name, factor)
        for turn in parts.turns:
            _shrink([turn], abs(_sum(turn)), self._section.turn_bound)
        if not self._section.allow_domination:
            worth = self._section.success - self._section.failure
            for answer, process in ((1.0, 1.0), exact_weights(self._section.tiers)):
                _shrink([parts.whole, *parts.turns], _earned(parts, answer, process), answer * worth)
        if self._section.tiers.enabled:
            answer = answer_weight(member, self._section.tiers)
            for name in parts.names - {SHAPING}:
                parts.multiply(name, answer if name in _ANSWER else 1 - answer)
        turns = tuple(replace(turn, rewards=rewards) for turn, rewards in zip(member.turns, parts.turns, strict=True))
        return replace(member, turns=turns, rewards=parts.whole)


def _normalize(scored: Sequence[_Parts], name: str, weight: float) -> None:
    largest = max((abs(parts.total(name)) for parts in scored), default=0.0)
    if largest > 0:
        for parts in scored:
            parts.multiply(name, weight / largest)


def _shown(member: Trajectory) -> Trajectory:
    """What components see: without an earlier scoring's rewards, since a re-scoring must find what the first one found, and
    as a copy whose change changes nothing that is kept; of the arrays, which are large, a view that cannot be written to."""
    turns = tuple(
        replace(turn, rewards={}, calls=tuple(replace(call, arguments=deepcopy(call.arguments)) for call in turn.calls))
        for turn in member.turns
    )
    arrays = {name: getattr(member, name).view() for name in _ARRAYS}
    for array in arrays.values():
        array.flags.writeable = False
    return replace(member, rewards={}, turns=turns, **arrays)


def _booked_as(name: str) -> frozenset[str]:
    """Where a component's values are: what stands in for a missing score shares the score's fate in everything."""
    return frozenset({JUDGE, JUDGE_MISSING}) if name == JUDGE else frozenset({name})


def _earned(parts: _Parts, answer: float, process: float) -> float:
    """What the auxiliary parts of an episode add up to, under these weights of those that speak of the answer and the rest."""
    names = parts.names - {FINAL, SHAPING}
    return math.fsum(parts.total(name) * (answer if name in _ANSWER else process) for name in names)


def _sum(parts: Mapping[str, float]) -> float:
    return sum(value for name, value in parts.items() if name not in (FINAL, SHAPING))


def _shrink(records: Sequence[dict[str, float]], total: float, bound: float) -> None:
    if total > bound:
        for parts in records:
            parts.update({name: value * bound / total for name, value in parts.items() if name not in (FINAL, SHAPING)})
