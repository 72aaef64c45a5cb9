"""Alarms of the learner's health: what of its metrics means that learning is about to fail, and what to do about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from cacherl.alarm_settings import LearnerAlarmsSection
from deploy.alarms import Alarm, Condition, Finding, Observation


@dataclass(slots=True, kw_only=True)
class MeanOutside:
    """The mean of a metric over the last `window` updates that measured it lies outside [low, high]."""

    metric: str
    window: int
    low: float = float("-inf")
    high: float = float("inf")
    _values: deque[float] = field(default_factory=deque)

    def __call__(self, observation: Observation) -> Sequence[Finding]:
        if not _took(self._values, observation, self.metric, self.window) or len(self._values) < self.window:
            return ()
        mean = fmean(self._values)
        if self.low <= mean <= self.high:
            return ()
        limit = f"below {self.low:g}" if mean < self.low else f"above {self.high:g}"
        return (Finding(text=f"{self.metric} was {mean:.3g} on average of {self.window} updates, {limit}."),)


@dataclass(slots=True, kw_only=True)
class Surge:
    """A metric is more than `factor` times the median of the `window` updates before, and above `floor`."""

    metric: str
    window: int
    factor: float
    floor: float
    _values: deque[float] = field(default_factory=deque)

    def __call__(self, observation: Observation) -> Sequence[Finding]:
        before = list(self._values)
        if not _took(self._values, observation, self.metric, self.window) or len(before) < self.window:
            return ()
        value, usual = self._values[-1], median(before)
        if value <= max(self.factor * usual, self.floor):
            return ()
        return (Finding(text=f"{self.metric} is {value:.3g}, after a median of {usual:.3g} over {self.window} updates."),)


@dataclass(slots=True, kw_only=True)
class FarBelowStart:
    """The mean of a metric over the last `window` updates is below `share` of what it was over the first ones."""

    metric: str
    window: int
    share: float
    _start: list[float] = field(default_factory=list)
    _values: deque[float] = field(default_factory=deque)

    def __call__(self, observation: Observation) -> Sequence[Finding]:
        if not _took(self._values, observation, self.metric, self.window):
            return ()
        if len(self._start) < self.window:
            self._start.append(self._values[-1])
            return ()
        before, now = fmean(self._start), fmean(self._values)
        if now >= self.share * before:
            return ()
        return (Finding(text=f"{self.metric} fell from {before:.3g} in the first {self.window} updates to {now:.3g}."),)


@dataclass(slots=True, kw_only=True)
class Falling:
    """The mean of a metric over the second half of the last `window` updates is `drop` below that of the first half."""

    metric: str
    window: int
    drop: float
    _values: deque[float] = field(default_factory=deque)

    def __call__(self, observation: Observation) -> Sequence[Finding]:
        if not _took(self._values, observation, self.metric, self.window) or len(self._values) < self.window:
            return ()
        values = list(self._values)
        before, after = fmean(values[: self.window // 2]), fmean(values[self.window // 2 :])
        if before - after < self.drop:
            return ()
        return (Finding(text=f"{self.metric} fell from {before:.3g} to {after:.3g} within {self.window} updates."),)


@dataclass(slots=True, kw_only=True)
class GrowthAtRest:
    """While the learning rate is 0, a metric has grown to `factor` times its first value, and above `floor`."""

    metric: str
    factor: float
    floor: float
    _first: float | None = None

    def __call__(self, observation: Observation) -> Sequence[Finding]:
        value = observation.metrics.get(self.metric)
        if value is None or observation.metrics.get("learner/lr") != 0:
            return ()
        if self._first is None:
            self._first = value
        if value <= max(self.factor * self._first, self.floor):
            return ()
        return (Finding(text=f"{self.metric} grew from {self._first:.3g} to {value:.3g} at learning rate 0."),)


def learner_alarms(settings: LearnerAlarmsSection) -> list[Alarm]:
    """The alarms of a run, none when they are off."""
    if not settings.enabled:
        return []
    window, (low, high) = settings.window, settings.ratio
    table: list[tuple[str, Condition, str]] = [
        (
            "kl_surge",
            Surge(metric="learner/drift_kl", window=window, factor=settings.kl_surge, floor=0.01),
            "Lower learner.lr, raise kl.coef or set kl.target so that it adapts, or replay less (governor.replay_ratio).",
        ),
        (
            "entropy_collapse",
            FarBelowStart(metric="learner/entropy", window=window, share=settings.entropy_share),
            "Set loss.entropy_coef, raise loss.clip_high or rollout.temperature; groups without variance teach nothing.",
        ),
        (
            "ratio_range",
            MeanOutside(metric="learner/ratio_mean", window=window, low=low, high=high),
            "The pool is too far from the policy: lower replay.max_staleness or freshness_half_life, or set correction.method.",
        ),
        (
            "ess_collapse",
            MeanOutside(metric="learner/ess", window=window, low=settings.ess),
            "A few trajectories decide each update: replay less (governor.replay_ratio), set governor.lr_by_ess or "
            "correction.method sequence.",
        ),
        (
            "gradient_spikes",
            MeanOutside(metric="learner/skipped_steps", window=window, high=settings.skipped),
            "Steps are skipped as learner.grad_spike says: lower learner.lr or learner.max_grad_norm, or look for outliers "
            "in learner/ratio_max.",
        ),
        (
            "engine_mismatch",
            MeanOutside(metric="learner/mismatch_kl", window=window, high=settings.mismatch),
            "Engine and learner disagree about tokens of the same weights: compare model.dtype, chat template and "
            "kernels; correction.method truncated limits the harm.",
        ),
        (
            "mismatch_at_rest",
            GrowthAtRest(metric="learner/mismatch_kl", factor=4.0, floor=1e-5),
            "Nothing is being learned, so weights reach the engines changed or not at all: report it with the run's logs.",
        ),
        (
            "good_likelihood",
            Falling(metric="learner/good_logprob", window=window, drop=settings.good_drop),
            "What succeeds becomes less likely (likelihood displacement): lower learner.lr, set loss.dual_clip, or raise "
            "kl.coef.",
        ),
    ]
    return [Alarm(name=name, condition=condition, remedy=remedy) for name, condition, remedy in table]


def _took(values: deque[float], observation: Observation, metric: str, window: int) -> bool:
    """Append the metric, keeping the last `window`; False if it was not measured."""
    value = observation.metrics.get(metric)
    if value is None:
        return False
    values.append(value)
    if len(values) > window:
        values.popleft()
    return True
