"""The sections that decide what an update minimises: advantages, loss, off-policy correction, KL, replay governor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from cacherl.section import Section

Estimator = Literal["group", "loo", "gigpo", "gae"]
#: Estimators to which it matters when a reward comes, because a critic foresees the rest.
WITH_CRITIC = ("gae",)
Baseline = Literal["frozen", "separate", "joint", "weighted"]
LossName = Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"]
Aggregation = Literal["token", "sequence", "constant"]
CorrectionMethod = Literal["none", "truncated", "masked", "sequence", "m2po"]
KLEstimator = Literal["k1", "k2", "k3"]

#: What each loss's own paper sets; a key that is given replaces it.
_LOSS_DEFAULTS: dict[str, dict[str, Any]] = {
    "grpo": {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence"},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token"},
    "dr_grpo": {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "constant"},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence"},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0, "aggregation": "token"},
}


class AdvantageSection(Section):
    """How much better than its siblings a trajectory, or a turn of it, did."""

    estimator: Estimator = Field(
        "group", description="group mean; loo: mean of the others; gigpo: group plus equal states; gae: a critic, over turns"
    )
    normalize_std: bool = Field(
        True,
        description="divide by the group's standard deviation (GRPO), or only centre; loo and dr_grpo only centre; gae: "
        "standardise over the batch",
    )
    epsilon: float = Field(1e-6, gt=0, description="added to that standard deviation")
    zero_variance: Literal["outcome", "return"] = Field("outcome", description="what must differ within a trained group")
    baseline: Baseline = Field(
        "frozen",
        description="frozen: as at collection; separate: policy and foreign members apart; joint: only centred where foreign "
        "members are among them; weighted: mean weighted by the members' current ratios",
    )
    min_ess: float = Field(0.5, gt=0, le=1, description="weighted: effective share of a group below which it stays frozen")
    gamma: float = Field(0.95, gt=0, le=1, description="gigpo, gae: discount per turn")
    lam: float = Field(0.95, ge=0, le=1, description="gae: 0 trusts the critic, 1 the returns")
    step_weight: float = Field(1.0, gt=0, description="gigpo: weight of the turn's advantage among equal states")

    @model_validator(mode="before")
    @classmethod
    def _of_estimator(cls, given: Any) -> Any:
        leaves_one_out = isinstance(given, Mapping) and given.get("estimator") == "loo"
        return {"normalize_std": False, **given} if leaves_one_out else given

    @model_validator(mode="after")
    def _all_used(self) -> AdvantageSection:
        if self.estimator != "gigpo":
            self.refuse_idle(("step_weight",), "advantage.estimator gigpo")
        if self.estimator not in ("gigpo", "gae"):
            self.refuse_idle(("gamma",), "advantage.estimator gigpo or gae")
        if self.estimator != "gae":
            self.refuse_idle(("lam",), "advantage.estimator gae")
        else:
            self.refuse_idle(("zero_variance",), "an estimator that compares the members of a group")
        if not self.normalize_std:
            self.refuse_idle(("epsilon",), "advantage.normalize_std, which loo and dr_grpo leave out")
        if self.baseline != "weighted":
            self.refuse_idle(("min_ess",), "advantage.baseline weighted")
        if self.estimator != "group" and self.baseline != "frozen":
            raise ValueError(f"baseline {self.baseline} is an alternative of estimator group, not of {self.estimator}")
        return self


class ValueSection(Section):
    """The critic of advantage.estimator gae: a linear head on the policy's last hidden state."""

    coef: float = Field(0.5, gt=0, description="weight of its loss")
    clip_range: float = Field(0.2, gt=0, le=1e6, description="reward units by which a value may move in one update")


class LossSection(Section):
    """The policy-gradient loss. The name sets clips and aggregation as published; each may be replaced."""

    name: LossName = Field("dapo", description="the default differs from grpo in clip_high 0.28 and the mean over tokens")
    clip_low: float = Field(0.2, gt=0, le=1, description="ratios count down to 1 - clip_low")
    clip_high: float = Field(0.28, gt=0, le=1e6, description="ratios count up to 1 + clip_high")
    dual_clip: float | None = Field(None, gt=1, description="limit of the ratio where the advantage is negative; usual: 3")
    aggregation: Aggregation = Field("token", description="one mean over tokens, mean of row means, or sum over a constant")
    constant_length: int | None = Field(None, ge=1, description="tokens of that constant per row; null: model.max_length")
    entropy_coef: float = Field(0.0, ge=0, description="weight of a reward for entropy")
    foreign_gamma: float = Field(
        0.1, gt=0, description="tokens of demonstrations and random policies count ratio / (ratio + this), unclipped"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {**_LOSS_DEFAULTS.get(str(given.get("name", "dapo")), {}), **given}

    @model_validator(mode="after")
    def _all_used(self) -> LossSection:
        if self.aggregation != "constant":
            self.refuse_idle(("constant_length",), "loss.aggregation constant")
        if self.name == "cispo":
            self.refuse_idle(("dual_clip",), "a loss that clips (grpo, dapo, dr_grpo, gspo)")
        return self

    @property
    def clips_as_published(self) -> bool:
        """Neither clip was replaced."""
        own = _LOSS_DEFAULTS[self.name]
        return (self.clip_low, self.clip_high) == (own["clip_low"], own["clip_high"])


class CorrectionSection(Section):
    """What is done about tokens that an older policy sampled, beyond the loss's own clip."""

    method: CorrectionMethod = Field(
        "none",
        description="none: the loss's ratio is to the policy that sampled; truncated, masked, sequence: it is to the policy "
        "at the update's start, and a weight corrects for the rest; m2po: a bound on mean squared log-ratios replaces the clip",
    )
    cap: float = Field(2.0, ge=1, le=1e6, description="largest weight; 'masked' drops tokens above it, the others limit them")
    min_ratio: float = Field(1e-4, gt=0, lt=1, description="sequence: a row with a token less likely than this is dropped")
    second_moment: float = Field(0.04, gt=0, description="m2po: mean squared log-ratio allowed over harmful tokens")
    keep_within: float | None = Field(
        None, gt=1, description="drop rows whose geometric mean ratio leaves [1/x, x]; FreshPER: 3"
    )

    @model_validator(mode="after")
    def _all_used(self) -> CorrectionSection:
        if self.method not in ("truncated", "masked", "sequence"):
            self.refuse_idle(("cap",), "correction.method truncated, masked or sequence")
        if self.method != "sequence":
            self.refuse_idle(("min_ratio",), "correction.method sequence")
        if self.method != "m2po":
            self.refuse_idle(("second_moment",), "correction.method m2po")
        return self


class KLSection(Section):
    """KL to the reference policy (the warm-start model), in one place: two penalties would add up unseen."""

    coef: float = Field(0.0, ge=0, description="weight of the penalty, the first one if it adapts; 0 keeps no reference model")
    placement: Literal["loss", "reward"] = Field(
        "loss", description="a term of the loss, or a part 'kl' of every turn's reward: k1 of the policy that sampled it"
    )
    estimator: KLEstimator = Field("k3", description="k1's gradient is 0 on average: only good for measuring")
    replayed: Literal["include", "weighted", "exclude"] = Field(
        "include", description="tokens trained on before: as fresh ones, weighted by their ratio (unbiased), or left out"
    )
    target: float | None = Field(None, gt=0, description="nats per token that the weight adapts towards; null: it stays")
    rate: float = Field(0.1, gt=0, le=1, description="largest change of the weight per update is a fifth of this")
    surge: float = Field(4.0, gt=1, description="times the target at which the weight doubles at once")
    coef_min: float = Field(1e-5, gt=0, description="least weight that it adapts to")
    coef_max: float = Field(10.0, gt=0, description="largest weight that it adapts to")

    @model_validator(mode="after")
    def _all_used(self) -> KLSection:
        if not self.coef:
            self.refuse_idle(("placement", "estimator", "replayed", "target"), "kl.coef above 0")
        if self.placement == "reward":
            self.refuse_idle(("estimator", "replayed", "target"), "kl.placement loss")
        if self.target is None:
            self.refuse_idle(("rate", "surge", "coef_min", "coef_max"), "kl.target")
        elif not self.coef_min <= self.coef <= self.coef_max:
            raise ValueError(f"coef {self.coef} must lie in [coef_min, coef_max] = [{self.coef_min}, {self.coef_max}]")
        return self


class GovernorSection(Section):
    """Whether replay ratio and learning rate follow how far the pool is from the policy."""

    replay_ratio: tuple[float, float] | None = Field(
        None, description="bounds of trained per inserted trajectories; null: replay.update_frequency stays as it is"
    )
    ess: tuple[float, float] = Field(
        (0.3, 0.6), description="effective sample size below which to replay less, above which more"
    )
    kl: tuple[float, float] = Field(
        (0.02, 0.1), description="k3 from the sampling policy below which to replay more, above which less"
    )
    factor: float = Field(1.25, gt=1, description="of one change of the replay ratio")
    lr_by_ess: bool = Field(False, description="multiply the learning rate by the root of the effective sample size (VCPO)")
    lr_floor: float = Field(0.1, gt=0, le=1, description="least multiple of the learning rate")

    @model_validator(mode="after")
    def _consistent(self) -> GovernorSection:
        for name in ("replay_ratio", "ess", "kl"):
            bounds = getattr(self, name)
            if bounds is not None and not 0 < bounds[0] < bounds[1]:
                raise ValueError(f"{name} {list(bounds)} must be two rising positive numbers")
        if self.ess[1] >= 1:
            raise ValueError(f"ess {list(self.ess)} are shares of a batch, none of which exceeds 1; end below it")
        if self.replay_ratio is None:
            self.refuse_idle(("ess", "kl", "factor"), "governor.replay_ratio")
        if not self.lr_by_ess:
            self.refuse_idle(("lr_floor",), "governor.lr_by_ess")
        return self
