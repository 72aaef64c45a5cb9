"""The sections of what a person is warned of."""

from __future__ import annotations

from pydantic import Field, model_validator

from cacherl.section import Section


class RewardHackingSection(Section):
    """The alarm for a reward that is earned without the task being solved."""

    enabled: bool = True
    variance_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="share of the variance within groups that a part of the reward may have, mean of the window",
    )
    window: int = Field(10, ge=2, description="updates over which the share is averaged and success should rise")
    min_rise: float = Field(
        0.02, ge=0, lt=1, description="training success rises if the second half of the window exceeds the first by this"
    )
    outcome_parts: tuple[str, ...] = Field(("final",), description="parts that pay for the outcome; any other is auxiliary")


class LearnerAlarmsSection(Section):
    """The alarms of the learner's health; docs/learner.md has their remedies."""

    enabled: bool = True
    window: int = Field(10, ge=2, description="updates that means, medians and falls are taken over")
    kl_surge: float = Field(4.0, gt=1, description="times the usual k3 to the sampling policies that is a surge, if above 0.03")
    entropy_share: float = Field(0.1, gt=0, lt=1, description="share of the first updates' entropy that is a collapse")
    ratio: tuple[float, float] = Field((0.8, 1.2), description="healthy mean ratio of the policy to the sampling ones")
    ess: float = Field(0.05, gt=0, lt=1, description="effective sample size, as a share of the batch, that is a collapse")
    skipped: float = Field(0.2, ge=0, description="skipped steps per update that are too many")
    mismatch: float = Field(0.02, gt=0, description="k3 between engine and learner on the same weights that is too much")
    good_drop: float = Field(0.5, gt=0, description="nats per token by which good trajectories may become less likely")

    @model_validator(mode="after")
    def _rising(self) -> LearnerAlarmsSection:
        if not 0 < self.ratio[0] < self.ratio[1]:
            raise ValueError(f"ratio {list(self.ratio)} must be two rising positive numbers")
        return self


class AlarmsSection(Section):
    """What a person is warned of while the run goes on."""

    reward_hacking: RewardHackingSection = RewardHackingSection()
    learner: LearnerAlarmsSection = LearnerAlarmsSection()
