"""RewardSection: the weights of the reward's parts, how they change over a run, and what bounds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from cacherl.section import Section

#: Parts that are not auxiliary: neither phased in, nor bounded by the domination rule.
FINAL = "final"
SHAPING = "shaping"
KL = "kl"
#: What stands for the judge's part where the judge gave no score.
JUDGE, JUDGE_MISSING = "judge", "judge_missing"


class FormatSection(Section):
    """Calls that are not written as they should be."""

    repair: float = Field(0.0, le=0, description="a call that could be read only after repairs")
    invalid: float = Field(0.0, le=0, description="a call that cannot be read, or whose name or arguments are not valid")


class CostSection(Section):
    """What calls cost, and how long they take."""

    call: float = Field(0.0, le=0, description="per unit of a tool's declared cost (ToolSpec.cost)")
    second: float = Field(0.0, le=0, description="per second that a call takes, simulated latency included")
    cap: float = Field(0.2, gt=0, description="largest magnitude of either part in an episode")

    @model_validator(mode="after")
    def _all_used(self) -> CostSection:
        if not (self.call or self.second):
            self.refuse_idle(("cap",), "reward.cost.call or reward.cost.second below 0")
        return self


class OverlongSection(Section):
    """Soft penalty on long trajectories (DAPO, arXiv 2503.14476, equation 13)."""

    penalty: float = Field(0.0, le=0, description="at model.max_length tokens; linear over the buffer before it")
    buffer: int = Field(64, ge=1, description="tokens before model.max_length in which the penalty grows")

    @model_validator(mode="after")
    def _all_used(self) -> OverlongSection:
        if not self.penalty:
            self.refuse_idle(("buffer",), "reward.overlong.penalty below 0")
        return self


class JudgeSection(Section):
    """A model that scores finished episodes between 0 and 1."""

    weight: float = Field(0.0, ge=0, description="of a score of 1; 0: no judge")
    backend: Literal["endpoint", "local"] = Field("endpoint", description="OpenAI-compatible server, or a Hugging Face model")
    url: str | None = Field(None, description="of the server, up to and including /v1")
    model: str | None = Field(None, description="name at the endpoint, or Hugging Face folder of the local scoring model")
    api_key_env: str | None = Field(None, description="environment variable that holds the endpoint's key")
    instructions: str = Field(
        "You grade an assistant that answers with the help of tools. Grade how well the answer follows from what the tools "
        'returned. Reply with JSON only: {"score": s}, s between 0 (worthless) and 1 (perfect).',
        description="to the endpoint's model, before the transcript",
    )
    deadline_s: float = Field(20.0, gt=0, description="for one episode's score, retries included")
    retries: int = Field(2, ge=0, description="further attempts after a failure")
    parallel: int = Field(8, ge=1, description="requests at a time per actor; a local model takes one")
    cache_entries: int = Field(10_000, ge=0, description="scores remembered per actor, by transcript")

    @model_validator(mode="after")
    def _reachable(self) -> JudgeSection:
        if not self.weight:
            self.refuse_idle(set(type(self).model_fields) - {"weight"}, "reward.judge.weight above 0")
        if self.backend == "local":
            self.refuse_idle(("api_key_env", "instructions"), "reward.judge.backend endpoint")
        if self.weight and self.model is None:
            raise ValueError(f"weight {self.weight} needs model: its name at the endpoint, or the folder of a local one")
        if self.weight and (self.backend == "endpoint") != (self.url is not None):
            raise ValueError(
                f"backend {self.backend!r} and url {self.url!r} contradict: an endpoint needs one, a model takes none"
            )
        return self


class TierSection(Section):
    """Weight of the answer by how the tool results came about (CacheRL, arXiv 2606.14179); the other parts take the rest."""

    enabled: bool = False
    exact: float = Field(0.60, gt=0, le=1, description="all results live or from the cache's exact tier")
    normalised: float = Field(0.30, gt=0, le=1, description="the worst result is from tier 'normalised'")
    best_effort: float = Field(0.10, gt=0, le=1, description="the worst result is from tier 'best_effort'")

    @model_validator(mode="after")
    def _all_used(self) -> TierSection:
        if not self.enabled:
            self.refuse_idle(("exact", "normalised", "best_effort"), "reward.tiers.enabled")
        return self


class PhaseInSection(Section):
    """When the auxiliary parts begin to count; the final part and KL do from the start."""

    after: int = Field(0, ge=0, description="updates without them")
    over: int = Field(0, ge=0, description="updates over which their weights then grow linearly to 1")


class AdaptiveSection(Section):
    """The step penalty grows while episodes get longer, and falls back when success drops."""

    rate: float = Field(0.0, ge=0, le=1, description="growth of the penalty per update; 0: constant")
    limit: float = Field(3.0, ge=1, description="largest factor")
    memory: float = Field(20.0, ge=1, description="updates that the running means of length and success remember")
    length_rise: float = Field(0.02, ge=0, description="relative rise of the mean number of turns that counts")
    success_drop: float = Field(0.02, ge=0, description="drop of the success rate that counts")

    @model_validator(mode="after")
    def _all_used(self) -> AdaptiveSection:
        if not self.rate:
            self.refuse_idle(("limit", "memory", "length_rise", "success_drop"), "reward.adaptive.rate above 0")
        return self


class ComponentSection(Section):
    """A user's own part of the reward."""

    path: str = Field(pattern=r"^[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)+$", description="package.module.name of a class or function")
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="of the part, in metrics and trajectories")
    weight: float = Field(description="factor of its values, which are clipped to [-1, 1] per turn and per episode")
    settings: dict[str, Any] = Field({}, description="keyword arguments of the class, or of every call of the function")


class RewardSection(Section):
    """Weights of the reward's components, in reward units. A weight of 0 leaves its component out."""

    success: float = Field(1.0, gt=0, description="for outcome 1")
    failure: float = Field(0.0, description="for outcome 0; linear between")
    tool_use: float = Field(0.05, ge=0, description="a needed call with valid arguments, first time only")
    tool_misuse: float = Field(-0.1, le=0, description="an irrelevant or invalid call")
    result_utilization: float = Field(0.0, ge=0, description="a turn that uses the result of an earlier one, once per result")
    utilization_rule: Literal["text", "environment"] = Field(
        "text", description="used is: a new value of the result occurs in the turn, or the environment tags a call 'uses'"
    )
    step_penalty: float = Field(-0.02, le=0, description="every turn")
    format: FormatSection = FormatSection()
    cost: CostSection = CostSection()
    overlong: OverlongSection = OverlongSection()
    judge: JudgeSection = JudgeSection()
    shaping: float = Field(0.0, ge=0, description="weight of the potential-based shaping; needs an estimator with a critic")
    components: tuple[ComponentSection, ...] = Field((), description="parts of your own: path, name, weight, settings")
    normalize: tuple[str, ...] = Field(
        (), description="parts divided by their largest magnitude within the group, so that their weight is their scale"
    )
    turn_bound: float = Field(1.0, gt=0, description="largest magnitude of one turn's reward, shaping excepted")
    allow_domination: bool = Field(False, description="accept that the other parts may outweigh the final one")
    tiers: TierSection = TierSection()
    phase_in: PhaseInSection = PhaseInSection()
    adaptive: AdaptiveSection = AdaptiveSection()

    @model_validator(mode="after")
    def _consistent(self) -> RewardSection:
        if self.success <= self.failure:
            raise ValueError(f"success {self.success} must exceed failure {self.failure}")
        weights = list(self.weights())
        names = [name for name, _ in weights]
        if repeated := sorted({name for name in names if names.count(name) > 1} | ({KL, JUDGE_MISSING} & set(names))):
            raise ValueError(f"components: names {repeated} are taken; give each part its own")
        if unknown := sorted(set(self.normalize) - set(names) | ({FINAL, SHAPING} & set(self.normalize))):
            raise ValueError(
                f"normalize {unknown} must be auxiliary parts with a weight: {sorted(set(names) - {FINAL, SHAPING})}"
            )
        if not self.result_utilization:
            self.refuse_idle(("utilization_rule",), "reward.result_utilization above 0")
        if self.adaptive.rate and not self.step_penalty:
            raise ValueError(f"adaptive.rate {self.adaptive.rate} has no step_penalty to adapt: set step_penalty below 0")
        return self

    def weights(self) -> Iterator[tuple[str, float]]:
        """(part, weight) of every component that takes part, before any schedule."""
        yield FINAL, self.success - self.failure
        scalars = {
            "tool_use": self.tool_use or self.tool_misuse,
            "result_utilization": self.result_utilization,
            "step_penalty": self.step_penalty,
            "format": self.format.invalid or self.format.repair,
            "tool_cost": self.cost.call,
            "latency": self.cost.second,
            "overlong": self.overlong.penalty,
            JUDGE: self.judge.weight,
            SHAPING: self.shaping,
        }
        yield from ((name, value) for name, value in scalars.items() if value)
        yield from ((part.name, part.weight) for part in self.components if part.weight)
