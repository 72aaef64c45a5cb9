"""ExplorationSection: who plays some members of training groups in the policy's place, how often and how long."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cacherl.section import Section

Explorer = Literal["random", "teacher", "policy"]


class ExplorationSection(Section):
    """Members of training groups that an explorer plays instead of the policy. See docs/learner.md."""

    rate: float = Field(
        0.0, ge=0, lt=1, description="chance that a member is the explorer's; one of each group stays the policy's; 0: off"
    )
    explorer: Explorer = Field(
        "random",
        description="random: valid and invalid calls by chance; teacher: the environment's own solution; policy: itself, at "
        "another temperature",
    )
    temperature: float = Field(1.5, gt=0, description="policy: of its sampling, and of its log-probabilities in every update")
    sloppiness: float = Field(
        0.0, ge=0, lt=1, description="teacher: chance that it stops early at a hop or gives up on a failure; 0: an oracle"
    )
    updates: int | None = Field(None, ge=1, description="updates after which the policy plays alone; null: never")

    @model_validator(mode="after")
    def _all_used(self) -> ExplorationSection:
        if not self.rate:
            self.refuse_idle(("explorer", "temperature", "sloppiness", "updates"), "exploration.rate above 0")
        if self.explorer != "policy":
            self.refuse_idle(("temperature",), "exploration.explorer policy")
        if self.explorer != "teacher":
            self.refuse_idle(("sloppiness",), "exploration.explorer teacher")
        return self

    @property
    def needs_solutions(self) -> bool:
        """The explorer follows the environment's own solutions."""
        return bool(self.rate) and self.explorer == "teacher"

    def rate_at(self, version: int) -> float:
        """The rate for groups that are asked for while the learner has made `version` updates."""
        return self.rate if self.updates is None or version < self.updates else 0.0

    def require_effect(self, *, group_size: int, temperature: float) -> None:
        """Refuse an explorer that the sampling of the run's groups leaves nothing to do.

        Args:
            group_size, temperature: as in `rollout`.

        Raises:
            ValueError: groups have no second member, or the explorer samples as the policy does.
        """
        if self.rate and group_size == 1:
            raise ValueError(
                f"exploration.rate {self.rate:g} has no effect with rollout.group_size 1, whose member is the policy's; "
                "take 2 or more"
            )
        if self.rate and self.explorer == "policy" and self.temperature == temperature:
            raise ValueError(
                f"exploration.temperature {self.temperature:g} is rollout.temperature, so the explorer is the policy as it "
                "always samples; set another"
            )
