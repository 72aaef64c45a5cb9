"""ReplaySettings: every option of the replay service, as a plain dataclass.

It is a section of `RunConfig` and the argument of `replay_service.Replay`; it lives here, without pydantic, so that the
replay service can be used on its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, get_args

from cacherl.errors import ConfigError

Eviction = Literal["oldest", "stalest", "divergent", "utility"]
ImportanceBase = Literal["probability", "inclusion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Options of one replay pool. Counts of trajectories, not of groups, unless a name says groups.

    Attributes:
        url: redis:// or rediss:// URL; None starts an embedded server with the run.
        shards: URLs of further servers; when given, payloads are spread over them and `url` holds the index only.
        namespace: prefix of every key; None: one of the run's own, which its identity.json names.
        username: of the server, unless the URL names one.
        password_env: environment variable that holds the password, so that no file of the run does.
        ca_file: certificate authority that rediss:// servers are checked against; None: the system's.
        capacity: trajectories kept; beyond it groups are evicted.
        capacity_bytes: payload bytes kept; None: no limit.
        eviction: which groups go first: 'oldest' by insertion, 'stalest' by policy version, 'divergent' furthest from the
            current policy by the divergence that the learner acknowledged, 'utility' lowest priority times freshness.
        clear_every: learner versions between removals of the oldest share; 0: never.
        clear_share: that share of the groups.
        priority: what makes a group worth training on again: 'advantage' mean |advantage|, faded by how far the policy has left
            it, 'return' |mean return - running mean|, 'extreme' the member furthest from it in standard deviations, 'constant'
            the same for all, or a function of yours as 'package.module.function' that takes
            `replay_service.priorities.Signals` and returns a number >= 0.
        priority_exponent: groups are drawn in proportion to priority ** exponent; 0 is uniform.
        importance_sampling: weight the loss by (N * P) ** -beta / max against the sampling bias.
        importance_base: P is a group's probability in a single draw, or of its inclusion in the batch (with beta 1 the
            Horvitz-Thompson estimator, unbiased for batches drawn without replacement).
        importance_beta: the exponent beta of that weight.
        importance_beta_final: beta reached after importance_anneal batches, linearly; None: beta stays.
        importance_anneal: batches over which beta changes.
        freshness_half_life: learner versions after which a group's sampling mass has halved; None: no decay.
        fresh_fraction: share of each batch that is drawn from never-sampled groups, as far as there are any.
        newest_per_task: keep only the newest group of each task.
        cooldown: batches that pass before a group may be drawn again.
        warmup_steps: trajectories that must have been inserted before the first sample.
        update_frequency: new trajectories per optimizer step; a sample waits until they have arrived; 0: nobody waits.
        max_ahead: trajectories that the actors may insert beyond what update_frequency asks for; then pushes wait.
        max_staleness: learner versions after which a group is refused and no longer sampled; None: no limit.
        max_uses: how often a group may be sampled; None: no limit.
        compress: token ids with zstd: less memory and network for some CPU time.
        half_logprobs: log-probabilities as float16, relative error at most 2**-11.
        max_group_bytes: a larger payload is refused, by writer and reader.
        lease_s: seconds after which a sampled batch that was not acknowledged is given back; at least an update's length.
        deadline_s: seconds that a push or a sample waits before it gives up.
        reconnect_s: seconds for which an operation tries to reach the server again before it fails.

    Raises:
        ValueError: a value is out of its range, or two contradict each other; names the field.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    url: str | None = field(default=None, repr=False)
    shards: tuple[str, ...] = field(default=(), repr=False)
    namespace: str | None = None
    username: str | None = None
    password_env: str | None = None
    ca_file: str | None = None
    capacity: int = 10_000
    capacity_bytes: int | None = None
    eviction: Eviction = "oldest"
    clear_every: int = 0
    clear_share: float = 0.1
    priority: str = "advantage"
    priority_exponent: float = 0.6
    importance_sampling: bool = True
    importance_base: ImportanceBase = "probability"
    importance_beta: float = 0.4
    importance_beta_final: float | None = None
    importance_anneal: int = 1000
    freshness_half_life: float | None = 8.0
    fresh_fraction: float = 0.0
    newest_per_task: bool = False
    cooldown: int = 0
    warmup_steps: int = 128
    update_frequency: int = 128
    max_ahead: int = 256
    max_staleness: int | None = 16
    max_uses: int | None = 4
    compress: bool = False
    half_logprobs: bool = False
    max_group_bytes: int = 256 * 2**20
    lease_s: float = 1800.0
    deadline_s: float = 600.0
    reconnect_s: float = 30.0

    def __post_init__(self) -> None:
        for name, low in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise ValueError(f"{name} must be >= {low}, got {value}")
            if value is not None and value > _MOST:
                raise ValueError(f"{name} must be <= {_MOST}, got {value}")
        for name in _FRACTIONS:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
            if value is not None and value > _LONGEST:
                raise ValueError(f"{name} must be <= {_LONGEST:g}, got {value}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        self._check_places()
        self._check_together()
        self._check_effect()

    def _check_places(self) -> None:
        if self.namespace is not None:
            check_namespace(self.namespace)
        for name, url in (("url", self.url), *(("shards", shard) for shard in self.shards)):
            if url is not None and not url.startswith(_SCHEMES):
                raise ValueError(f"{name} must start with redis:// or rediss:// (leave url out for an embedded server)")

    def _check_together(self) -> None:
        if self.update_frequency > 0 and self.warmup_steps + self.max_ahead > self.capacity:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} + max_ahead {self.max_ahead} exceed capacity {self.capacity}: "
                "groups would be evicted before they could be sampled; raise capacity"
            )
        if self.warmup_steps > self.capacity:
            raise ValueError(f"warmup_steps {self.warmup_steps} exceed capacity {self.capacity}: raise capacity")
        if self.shards and self.url is None:
            raise ValueError("shards need a url: the server that holds the index")

    def _check_effect(self) -> None:
        """Refuse what was set and cannot do anything."""
        defaults = {each.name: each.default for each in fields(self)}
        for name, needed, given in _EFFECT:
            if getattr(self, name) != defaults[name] and not given(self):
                raise ValueError(f"{name} {getattr(self, name)} has no effect without {needed}")


def check_namespace(namespace: str) -> None:
    """Raise `ConfigError` unless a namespace is letters, digits and ``_ . : -`` and starts with one of the former."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(f"namespace {namespace!r} must be letters, digits and _ . : - and start with one of the former")


def without_password(url: str) -> str:
    """`url` with *** in place of its password and of those among its options, for files and reports."""
    url = _PASSWORD_OPTION.sub(r"\1***", url)
    head, at, tail = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    return f"{scheme}{slashes}{user.partition(':')[0]}:***@{tail}" if at and ":" in user else url


_SCHEMES = ("redis://", "rediss://")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_PASSWORD_OPTION = re.compile(r"([?&](?:ssl_)?password=)[^&#]*", re.IGNORECASE)
#: Lua counts in doubles.
_MOST = 2**53
#: Seconds, and versions of a half-life.
_LONGEST = 1e9
_LEAST = {
    "capacity": 1,
    "capacity_bytes": 1,
    "clear_every": 0,
    "importance_anneal": 1,
    "cooldown": 0,
    "warmup_steps": 0,
    "update_frequency": 0,
    "max_ahead": 1,
    "max_staleness": 0,
    "max_uses": 1,
    "max_group_bytes": 1,
}
_FRACTIONS = ("priority_exponent", "importance_beta", "importance_beta_final", "fresh_fraction", "clear_share")
_POSITIVE = ("freshness_half_life", "lease_s", "deadline_s", "reconnect_s")
_CHOICES = {"eviction": get_args(Eviction), "importance_base": get_args(ImportanceBase)}
#: (setting, what it needs, whether that is given).
_EFFECT: tuple[tuple[str, str, Callable[[ReplaySettings], bool]], ...] = (
    ("importance_base", "importance_sampling", lambda settings: settings.importance_sampling),
    ("importance_beta", "importance_sampling", lambda settings: settings.importance_sampling),
    ("importance_beta_final", "importance_sampling", lambda settings: settings.importance_sampling),
    ("importance_anneal", "importance_beta_final", lambda settings: settings.importance_beta_final is not None),
    ("clear_share", "clear_every", lambda settings: settings.clear_every > 0),
)
