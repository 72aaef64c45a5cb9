"""RunConfig: everything that a run is made of, from YAML plus dotted overrides.

Every key changes what the run does; an unknown key, a malformed value or two values that contradict each other is a
`ConfigError` that names the field, before anything is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError, field_serializer, model_validator

from cacherl.alarm_settings import AlarmsSection
from cacherl.environment_settings import CurriculumSection, EnvSection
from cacherl.errors import ConfigError
from cacherl.exploration_settings import ExplorationSection
from cacherl.learner_settings import LearnerSection, WarmStartSection
from cacherl.learning_settings import (
    WITH_CRITIC,
    AdvantageSection,
    CorrectionSection,
    GovernorSection,
    KLSection,
    LossSection,
    ValueSection,
)
from cacherl.model_settings import ModelSection
from cacherl.replay_settings import ReplaySettings, without_password
from cacherl.reward_settings import RewardSection
from cacherl.rollout_settings import ActorsSection, RolloutSection
from cacherl.run_settings import (
    CheckpointSection,
    EvalSection,
    MetricsSection,
    RayClusterSection,
    RunSection,
    WeightsSection,
)
from cacherl.section import Section


class RunConfig(Section):
    """The whole tree. Load it with `load_config`."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    env: EnvSection = EnvSection()
    curriculum: CurriculumSection = CurriculumSection()
    rollout: RolloutSection = RolloutSection()
    exploration: ExplorationSection = ExplorationSection()
    actors: ActorsSection = ActorsSection()
    reward: RewardSection = RewardSection()
    replay: ReplaySettings = ReplaySettings()
    warm_start: WarmStartSection = WarmStartSection()
    advantage: AdvantageSection = AdvantageSection()
    value: ValueSection = ValueSection()
    loss: LossSection = LossSection()
    correction: CorrectionSection = CorrectionSection()
    kl: KLSection = KLSection()
    governor: GovernorSection = GovernorSection()
    learner: LearnerSection = LearnerSection()
    weights: WeightsSection = WeightsSection()
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    metrics: MetricsSection = MetricsSection()
    alarms: AlarmsSection = AlarmsSection()
    ray: RayClusterSection = RayClusterSection()

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        group, batch, workers = self.rollout.group_size, self.learner.batch_size, self.learner.workers
        if batch % group:
            raise ValueError(f"learner.batch_size {batch} must be a multiple of rollout.group_size {group}")
        if batch < workers * group:
            raise ValueError(
                f"learner.batch_size {batch} must be at least learner.workers {workers} x rollout.group_size {group}: "
                "a group for each"
            )
        if group == 1 and self.advantage.estimator not in WITH_CRITIC:
            raise ValueError(
                f"rollout.group_size 1 leaves nothing to compare, so every advantage would be 0 with advantage.estimator "
                f"{self.advantage.estimator}; take 2 or more, or an estimator with a critic ({', '.join(WITH_CRITIC)})"
            )
        if self.replay.capacity < batch:
            raise ValueError(f"replay.capacity {self.replay.capacity} must be at least learner.batch_size {batch}")
        if self.learner.micro_batch_tokens < self.model.max_length:
            raise ValueError(
                f"learner.micro_batch_tokens {self.learner.micro_batch_tokens} must be at least "
                f"model.max_length {self.model.max_length}, or the longest trajectory fits in no micro-batch"
            )
        self._check_schedule()
        self._check_learning()
        self.exploration.require_effect(group_size=group, temperature=self.rollout.temperature)
        stalest, every = self.replay.max_staleness, self.weights.publish_every
        if stalest is not None and every > stalest + 1:
            raise ValueError(
                f"weights.publish_every {every} makes every group staler than replay.max_staleness {stalest} before the "
                "engines get new weights; publish more often, or allow more"
            )
        if self.replay.lease_s < self.learner.update_deadline_s:
            raise ValueError(
                f"replay.lease_s {self.replay.lease_s:g} must be at least learner.update_deadline_s "
                f"{self.learner.update_deadline_s:g}, or a slow update's groups are given back while it trains on them"
            )
        if self.replay.url is None:
            for name in ("username", "password_env", "ca_file"):
                if getattr(self.replay, name) is not None:
                    raise ValueError(
                        f"replay.{name} is for a server of yours, replay.url; the embedded one has its own password"
                    )
        if self.replay.priority == "td_error" and self.advantage.estimator not in WITH_CRITIC:
            raise ValueError(
                f"replay.priority 'td_error' needs a critic: set advantage.estimator to {' or '.join(WITH_CRITIC)}, "
                "or take priority 'advantage'"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_loss(cls, given: Any) -> Any:
        """Dr.GRPO only centres its advantages, unless told otherwise."""
        loss = given.get("loss") if isinstance(given, dict) else None
        if not isinstance(loss, dict) or loss.get("name") != "dr_grpo":
            return given
        advantage = given.get("advantage", {})
        return {**given, "advantage": {"normalize_std": False, **advantage}} if isinstance(advantage, dict) else given

    def _check_schedule(self) -> None:
        schedule, updates = self.learner.schedule, self.run.updates
        if schedule.kind != "constant" and schedule.updates is None and 0 < updates <= schedule.warmup:
            raise ValueError(
                f"learner.schedule.kind {schedule.kind} begins to fall after learner.schedule.warmup {schedule.warmup}, which "
                f"run.updates {updates} does not exceed; shorten the warm-up or set learner.schedule.updates"
            )

    def _check_learning(self) -> None:
        if self.kl.placement == "reward" and self.kl.coef and self.learner.lora.rank and self.learner.zero_stage == 3:
            raise ValueError(
                "kl.placement reward scores each rank's groups by themselves, which learner.zero_stage 3 cannot with "
                "learner.lora, whose base is the reference; take kl.placement loss or a lower stage"
            )
        if self.advantage.estimator != "gae":
            self.value.refuse_idle(("coef", "clip_range"), "advantage.estimator gae")
        self._check_shaping()
        steps = self.optimizer_steps
        if self.correction.method == "m2po":
            if self.loss.name in ("gspo", "cispo") or self.loss.dual_clip is not None or not self.loss.clips_as_published:
                raise ValueError(
                    "correction.method m2po replaces the clip of loss.name grpo, dapo or dr_grpo; with another loss, a clip "
                    f"or dual_clip of one's own the ratio would be corrected twice (loss.name {self.loss.name})"
                )
            if steps > 1:
                raise ValueError(
                    f"correction.method m2po judges tokens at the update's start, so it needs one optimizer step per batch, "
                    f"got {steps}; set learner.epochs 1 and leave learner.gradient_accumulation_steps null"
                )
        if self.governor.replay_ratio is not None:
            self._check_governor(*self.governor.replay_ratio)

    def _check_shaping(self) -> None:
        estimator = self.advantage.estimator
        if not self.reward.shaping or estimator in WITH_CRITIC:
            return
        reason = (
            "it compares equal states, whose potential is the same"
            if estimator == "gigpo"
            else "over a whole trajectory shaping adds up to minus the first state's potential, the same for all of a group"
        )
        raise ValueError(
            f"reward.shaping {self.reward.shaping:g} changes nothing with advantage.estimator {estimator}: {reason}; "
            f"set it to 0, or take an estimator whose critic learns from when the reward comes ({', '.join(WITH_CRITIC)})"
        )

    def _check_governor(self, low: float, high: float) -> None:
        if not self.replay.update_frequency:
            raise ValueError("governor.replay_ratio needs replay.update_frequency above 0, which it changes")
        ratio = self.learner.batch_size / self.replay.update_frequency
        if not low <= ratio <= high:
            raise ValueError(
                f"learner.batch_size / replay.update_frequency = {ratio:g} is the ratio that the governor starts from "
                f"and must lie in governor.replay_ratio [{low:g}, {high:g}]"
            )
        if self.replay.max_uses is not None and high > self.replay.max_uses:
            raise ValueError(
                f"governor.replay_ratio [{low:g}, {high:g}] allows more uses than replay.max_uses {self.replay.max_uses}"
            )

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps that one sampled batch gives."""
        learner = self.learner
        if learner.gradient_accumulation_steps is None:
            return learner.epochs
        per_step = (learner.mini_batch_size or learner.batch_size) * learner.gradient_accumulation_steps * learner.workers
        return learner.epochs * max(1, -(-learner.batch_size // per_step))

    @field_serializer("replay", when_used="json")
    def _without_passwords(self, replay: ReplaySettings) -> dict[str, Any]:
        """What is printed and written holds no password of a URL."""
        url = replay.url and without_password(replay.url)
        return {**asdict(replay), "url": url, "shards": [without_password(shard) for shard in replay.shards]}

    @property
    def run_dir(self) -> Path:
        """Folder of everything that the run writes."""
        return self.run.dir.expanduser() / self.run.name

    @property
    def checkpoint_dir(self) -> Path:
        """Folder of the run's checkpoints."""
        chosen = self.checkpoint.dir
        return self.run_dir / "checkpoints" if chosen is None else chosen.expanduser() / self.run.name


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file (or the defaults when None) and apply overrides such as 'learner.lr=1e-4'.

    Raises:
        ConfigError: unreadable file, unknown key, malformed or inconsistent value; names each field.
    """
    with _blamed_on(str(path)):
        tree = OmegaConf.load(path) if path is not None else OmegaConf.create({})
        if not isinstance(tree, DictConfig):
            raise ConfigError(f"{path}: a config must be a mapping of sections, got a list")
    with _blamed_on("overrides"):
        for override in overrides:
            if "=" not in override:
                raise ConfigError(f"override {override!r} must have the form section.key=value; a file goes with --config")
        merged = OmegaConf.merge(tree, OmegaConf.from_dotlist(list(overrides)))
    with _blamed_on(str(path or "overrides")):
        raw = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    return parse_config(raw)


@contextmanager
def _blamed_on(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"no config file at {what}") from None
    except (OmegaConfBaseException, yaml.YAMLError, OSError, ValueError) as error:
        raise ConfigError(f"{what}: {error}") from error


def parse_config(raw: Any) -> RunConfig:
    """Validate a plain tree of mappings.

    Raises:
        ConfigError: names each offending field, its value and what is allowed.
    """
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from None


def _explain(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"]) or "config"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{field}: unknown key; see `cacherl config` for all keys"
    value = problem["input"]
    shown = "" if isinstance(value, dict | BaseModel) else f" (got {value!r})"
    return f"{field}: {problem['msg'].removeprefix('Value error, ')}{shown}"
