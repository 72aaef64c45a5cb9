"""ReplaySettings: every option of the replay service, as a plain dataclass.

It is a section of `RunConfig` and the argument of `replay_service.Replay`; it lives here, without pydantic, so that the
replay service can be used on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Options of one replay pool. Counts of trajectories, not of groups, unless a name says groups.

    Attributes:
        url: redis:// or rediss:// URL; None starts an embedded server with the run.
        namespace: prefix of every key; None takes the run's name.
        capacity: trajectories kept; beyond it the oldest groups are evicted.
        priority_exponent: groups are drawn in proportion to priority ** exponent; 0 is uniform.
        importance_sampling: weight the loss by (N * P) ** -beta / max against the sampling bias.
        importance_beta: the exponent beta of that weight.
        freshness_half_life: learner versions after which a group's sampling mass has halved; None: no decay.
        warmup_steps: trajectories that must have been inserted before the first sample.
        update_frequency: new trajectories per optimizer step; a sample waits until they have arrived.
        max_ahead: trajectories that the actors may insert beyond what update_frequency asks for; then pushes wait.
        max_staleness: learner versions after which a group is refused and no longer sampled; None: no limit.
        max_uses: how often a group may be sampled; None: no limit.
        lease_s: seconds after which a sampled batch that was not acknowledged is given back.
        deadline_s: seconds that a push or a sample waits before it gives up.
        reconnect_s: seconds for which an operation tries to reach the server again before it fails.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    url: str | None = None
    namespace: str | None = None
    capacity: int = 10_000
    priority_exponent: float = 0.6
    importance_sampling: bool = True
    importance_beta: float = 0.4
    freshness_half_life: float | None = 8.0
    warmup_steps: int = 128
    update_frequency: int = 128
    max_ahead: int = 256
    max_staleness: int | None = 16
    max_uses: int | None = 4
    lease_s: float = 300.0
    deadline_s: float = 600.0
    reconnect_s: float = 30.0

    def __post_init__(self) -> None:
        for name, low in (("capacity", 1), ("warmup_steps", 0), ("update_frequency", 0), ("max_ahead", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be >= {low}, got {getattr(self, name)}")
        for name in ("max_staleness", "max_uses"):
            value = getattr(self, name)
            if value is not None and value < (1 if name == "max_uses" else 0):
                raise ValueError(f"{name} must be positive or null, got {value}")
        for name in ("priority_exponent", "importance_beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("lease_s", "deadline_s", "reconnect_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0 seconds, got {getattr(self, name)}")
        if self.freshness_half_life is not None and self.freshness_half_life <= 0:
            raise ValueError(f"freshness_half_life must be > 0 versions or null, got {self.freshness_half_life}")
        if self.warmup_steps + self.max_ahead > self.capacity:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} + max_ahead {self.max_ahead} exceed capacity {self.capacity}: "
                "groups would be evicted before they could be sampled; raise capacity"
            )
