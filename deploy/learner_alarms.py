"""Alarms of the learner's health: what of its metrics means that learning is about to fail, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from cacherl.alarm_settings import LearnerAlarmsSection
from deploy.alarms import Alarm, Condition, Finding, Window, Windowed

#: k3 to the sampling policies below which replayed data are close enough, however much it grew. FreshPER (arXiv 2604.16918)
#: calls less than 0.1 healthy; single updates of sound demo runs reach 0.017.
_HARMLESS_KL = 0.03
#: What is wrong with the values of a metric, as the rest of a sentence about it; None while all is well.
Judge = Callable[[Window[float]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOutside:
    """The mean of the last ones lies outside [low, high]."""

    low: float = float("-inf")
    high: float = float("inf")

    def __call__(self, values: Window[float]) -> str | None:
        mean = fmean(values.last)
        if self.low <= mean <= self.high:
            return None
        limit = f"below {self.low:g}" if mean < self.low else f"above {self.high:g}"
        return f"was {mean:.3g} on average of {len(values.last)} updates, {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """The last one is more than `factor` times the median of those before, and above `floor`."""

    factor: float
    floor: float

    def __call__(self, values: Window[float]) -> str | None:
        *before, value = values.last
        usual = median(before)
        if value <= max(self.factor * usual, self.floor):
            return None
        return f"is {value:.3g}, after a median of {usual:.3g} over {len(before)} updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class FarBelowStart:
    """The mean of the last ones is below `share` of that of the first ones."""

    share: float

    def __call__(self, values: Window[float]) -> str | None:
        start, now = fmean(values.first), fmean(values.last)
        if now >= self.share * start:
            return None
        return f"fell from {start:.3g} in the first {len(values.first)} updates to {now:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Falling:
    """The mean of the second half of the last ones is `drop` below that of the first half."""

    drop: float

    def __call__(self, values: Window[float]) -> str | None:
        half = len(values.last) // 2
        before, after = fmean(values.last[:half]), fmean(values.last[half:])
        if before - after < self.drop:
            return None
        return f"fell from {before:.3g} to {after:.3g} within {len(values.last)} updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The last one is more than `factor` times the first one, and above `floor`."""

    factor: float
    floor: float

    def __call__(self, values: Window[float]) -> str | None:
        first, value = values.first[0], values.last[-1]
        if value <= max(self.factor * first, self.floor):
            return None
        return f"grew from {first:.3g} to {value:.3g} at learning rate 0"


def learner_alarms(settings: LearnerAlarmsSection) -> list[Alarm]:
    """The alarms of a run, none when they are off."""
    if not settings.enabled:
        return []
    window, (low, high) = settings.window, settings.ratio
    table: list[tuple[str, Condition, str]] = [
        (
            "kl_surge",
            _over("learner/drift_kl", window + 1, Surge(factor=settings.kl_surge, floor=_HARMLESS_KL)),
            "Lower learner.lr, raise kl.coef or set kl.target so that it adapts, or replay less (governor.replay_ratio).",
        ),
        (
            "entropy_collapse",
            _over("learner/entropy", window, FarBelowStart(share=settings.entropy_share)),
            "Set loss.entropy_coef, raise loss.clip_high or rollout.temperature; groups without variance teach nothing.",
        ),
        (
            "ratio_range",
            _over("learner/ratio_mean", window, MeanOutside(low=low, high=high)),
            "The pool is too far from the policy: lower replay.max_staleness or freshness_half_life, or set correction.method.",
        ),
        (
            "ess_collapse",
            _over("learner/ess", window, MeanOutside(low=settings.ess)),
            "A few trajectories decide each update: replay less (governor.replay_ratio), set governor.lr_by_ess or "
            "correction.method sequence.",
        ),
        (
            "gradient_spikes",
            _over("learner/skipped_steps", window, MeanOutside(high=settings.skipped)),
            "Steps are skipped as learner.grad_spike says: lower learner.lr or learner.max_grad_norm, or look for outliers "
            "in learner/ratio_max.",
        ),
        (
            "engine_mismatch",
            _over("learner/mismatch_kl", window, MeanOutside(high=settings.mismatch)),
            "Engine and learner disagree about tokens of the same weights: compare model.dtype, chat template and "
            "kernels; correction.method truncated limits the harm.",
        ),
        (
            "mismatch_at_rest",
            _over("learner/mismatch_kl", 1, Growth(factor=4.0, floor=1e-5), at_rest=True),
            "Nothing is being learned, so weights reach the engines changed or not at all: report it with the run's logs.",
        ),
        (
            "good_likelihood",
            _over("learner/good_logprob", window, Falling(drop=settings.good_drop)),
            "What succeeds becomes less likely (likelihood displacement): lower learner.lr, set loss.dual_clip, or raise "
            "kl.coef.",
        ),
    ]
    return [Alarm(name=name, condition=condition, remedy=remedy) for name, condition, remedy in table]


def _over(metric: str, length: int, judge: Judge, *, at_rest: bool = False) -> Condition:
    """`judge` on `length` values of a metric at a time; `at_rest`: only on those at learning rate 0."""

    def measure(metrics: Mapping[str, float]) -> float | None:
        return None if at_rest and metrics.get("learner/lr") != 0 else metrics.get(metric)

    def findings(values: Window[float]) -> Sequence[Finding]:
        wrong = judge(values)
        return () if wrong is None else (Finding(text=f"{metric} {wrong}."),)

    return Windowed(length=length, measure=measure, judge=findings)
