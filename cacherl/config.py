"""RunConfig: everything that a run is made of, from YAML plus dotted overrides.

Every key changes what the run does; an unknown key, a malformed value or two values that contradict each other is a
`ConfigError` that names the field, before anything is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field, ValidationError, field_serializer, model_validator

from cacherl.errors import ConfigError
from cacherl.learning_settings import (
    WITH_CRITIC,
    AdvantageSection,
    CorrectionSection,
    GovernorSection,
    KLSection,
    LearnerAlarmsSection,
    LossSection,
    ValueSection,
)
from cacherl.replay_settings import ReplaySettings, without_password
from cacherl.reward_settings import RewardSection
from cacherl.section import Section


class RunSection(Section):
    """What the run is called, where it writes and when it ends."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="of its folder within dir")
    seed: int = Field(0, ge=0, lt=2**32, description="of tasks, their worlds, the noise of tools and initial weights")
    dir: Path = Path("runs")
    if_exists: Literal["error", "replace", "resume"] = Field(
        "error", description="what to do with an earlier run of the same name; resume begins one if there is none"
    )
    updates: int = Field(100, ge=0, description="optimizer steps after the warm start")
    stop_at_success: float | None = Field(None, gt=0, le=1, description="end early once held-out success reaches this")
    deadline_s: float = Field(86_400.0, gt=0, description="seconds after which the run ends as failed")


class TinyModelSection(Section):
    """A Qwen3 built on the spot, with a word-level tokenizer of the environment's vocabulary."""

    layers: int = Field(3, ge=1)
    hidden: int = Field(128, ge=16)
    heads: int = Field(4, ge=1)
    intermediate: int = Field(384, ge=16)

    @model_validator(mode="after")
    def _divisible(self) -> TinyModelSection:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden {self.hidden} must be an even multiple of heads {self.heads}")
        return self


class ModelSection(Section):
    """The policy's model: a Hugging Face folder, or a tiny one when path is null."""

    path: Path | None = Field(None, description="Hugging Face folder; null: a tiny model is built")
    tiny: TinyModelSection = TinyModelSection()
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_length: int = Field(512, ge=16, description="tokens of one trajectory, prompt included")


class ToolCacheSection(Section):
    """Results of slow or paid tool calls, served to later rollouts (not the replay of rollouts)."""

    mode: Literal["off", "record", "replay", "record_replay"] = Field(
        "off", description="record: always live; replay: never live; record_replay: live where nothing is recorded"
    )
    store: Literal["memory", "redis"] = Field("memory", description="of each actor alone, or shared by all")
    path: Path | None = Field(None, description="recording of the memory store: read at the start, appended to while recording")
    url: str | None = Field(None, description="of the redis store: a server that outlives the run, redis:// or unix://")
    namespace: str = Field("tools", min_length=1, description="prefix of the redis store's keys")
    tiers: tuple[Literal["exact", "normalised", "best_effort"], ...] = Field(
        ("exact",), description="how closely a recorded call must match; the closest match is served"
    )
    similar: dict[str, dict[str, Annotated[float, Field(gt=0, le=1)]]] = Field(
        {}, description="tool -> string argument -> similarity from which it counts as the same in tier 'normalised'"
    )
    max_entries: int = Field(100_000, ge=1, description="results kept; the least recently used go first")
    max_mib: int = Field(256, ge=1, description="MiB of results kept")

    @model_validator(mode="after")
    def _consistent(self) -> ToolCacheSection:
        if (self.store == "redis") != (self.url is not None):
            given = "no url" if self.url is None else "a url"
            raise ValueError(f"store {self.store!r} and {given} contradict each other: redis needs one, memory takes none")
        if self.store == "redis" and self.path:
            raise ValueError(f"path {str(self.path)!r} is for store memory; redis keeps its own")
        if self.mode == "replay" and self.store == "memory" and self.path is None:
            raise ValueError("mode 'replay' needs a recording: set path, or store redis and url")
        if "exact" not in self.tiers or len(set(self.tiers)) != len(self.tiers):
            raise ValueError(f"tiers {list(self.tiers)} must be distinct and include 'exact'")
        if self.similar and "normalised" not in self.tiers:
            raise ValueError(f"similar {self.similar} belongs to tier 'normalised'; add it to tiers {list(self.tiers)}")
        return self

    @field_serializer("url", when_used="json")
    def _without_password(self, url: str | None) -> str | None:
        return url and without_password(url)


class SandboxSection(Section):
    """The jail of tools that run code, and what one episode may use there. See docs/environments.md."""

    backend: Literal["auto", "namespaces", "landlock", "rlimit"] = Field(
        "auto", description="auto: the strongest that works here; 'rlimit' is no jail, and only for code that is trusted"
    )
    shell: bool = Field(False, description="also give the agent a shell; needs the namespaces backend")
    cpu_s: float = Field(1.0, gt=0, description="processor seconds of one call; of each process of a shell, rounded up")
    wall_s: float = Field(5.0, gt=0, description="seconds of one call")
    memory_mb: int = Field(256, ge=64, description="address space of one process, the interpreter's own 50 MB included")
    output_bytes: int = Field(4096, ge=64, description="longest output of one call; the rest is dropped")
    processes: int = Field(16, ge=1, description="processes of a shell at a time; python and sql may start none")
    files: int = Field(32, ge=8, description="files of one episode, the task's own included; landlock: none can be made")
    file_mb: int = Field(1, ge=1, description="size of a file")
    descriptors: int = Field(32, ge=16, description="open files of a process")


class EnvSection(Section):
    """Tasks and tools."""

    name: str = Field(
        "research", description="a family of `cacherl env list`, 'package.module:Name' of your own, or a mix: 'research*2+trip'"
    )
    settings: dict[str, Any] = Field({}, description="what this environment can be told; it validates them itself")
    levels: tuple[int, ...] | None = Field(
        None, min_length=1, description="difficulties to train and to evaluate on; null: all of split 'train'"
    )
    train_tasks: int | None = Field(
        None,
        ge=1,
        description="distinct training tasks (with a curriculum: of each level), played in turn; null: no end of them",
    )
    action_format: Literal["cacherl", "hermes", "llama3", "mistral"] = Field(
        "cacherl", description="how tool calls are written; the form that the model was trained on"
    )
    briefing: Literal["auto", "none", "template", "system"] = Field(
        "auto",
        description="how the prompt tells of the tools: by the model's chat template, by a system message, or not at all; "
        "auto: not to a tiny model, else by the template if it asks for calls in action_format, else by a system message",
    )
    transient_failure_rate: float = Field(0.1, ge=0, lt=1, description="share of tool calls that fail once, seeded")
    latency_s: float = Field(0.0, ge=0, description="mean simulated seconds of a tool call")
    max_turns: int = Field(16, ge=1, description="turns after which an episode is cut off")
    tool_cache: ToolCacheSection = ToolCacheSection()
    sandbox: SandboxSection = SandboxSection()


class CurriculumSection(Section):
    """Training tasks by what the policy can do; off: the levels alternate."""

    enabled: bool = False
    raise_above: float = Field(0.7, gt=0, lt=1, description="rolling success of a level above which the next one begins")
    lower_below: float = Field(0.2, ge=0, lt=1, description="rolling success of a level below which the one before returns")
    window: int = Field(32, ge=1, description="latest groups of a level over which its success is rolling")
    review: float = Field(0.2, ge=0, lt=1, description="share of fresh tasks from lower levels")
    revisit: float = Field(0.25, ge=0, lt=1, description="share of groups that repeat a task whose last group had variance")
    remembered: int = Field(256, ge=1, description="tasks kept to be repeated, the latest")

    @model_validator(mode="after")
    def _consistent(self) -> CurriculumSection:
        if self.lower_below >= self.raise_above:
            raise ValueError(f"lower_below {self.lower_below} must be below raise_above {self.raise_above}")
        changed = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if changed and not self.enabled:
            raise ValueError(f"{', '.join(changed)} does nothing while enabled is false")
        return self


class RolloutSection(Section):
    """How episodes are sampled."""

    group_size: int = Field(8, ge=1, description="siblings of one task")
    temperature: float = Field(1.0, gt=0, description="of training episodes; evaluation is greedy")
    max_new_tokens: int = Field(48, ge=1, description="sampled tokens of one turn")
    episode_timeout_s: float = Field(120.0, gt=0, description="seconds in engine and tools; event-loop lag not counted")
    max_retries: int = Field(2, ge=0, description="attempts to repeat a member that failed for infrastructure reasons")
    max_failed_groups: int = Field(16, ge=0, description="groups in a row without a finished member before the run fails")


class ActorsSection(Section):
    """The rollout actors: one vLLM engine each."""

    count: int = Field(1, ge=1)
    groups_in_flight: int = Field(8, ge=1, description="groups that one actor keeps running")
    cpus_per_actor: float = Field(1.0, ge=0, description="that Ray reserves")
    gpus_per_actor: int = Field(0, ge=0, description="also the engine's tensor-parallel size when > 1")
    threads: int = Field(1, ge=1, description="CPU threads of one engine")
    kv_cache_gib: int = Field(1, ge=1, description="KV cache of one engine on CPU, in GiB")
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1, description="share of a GPU's memory that its engine takes")
    max_restarts: int = Field(3, ge=0, description="restarts of one actor before the run fails")
    start_deadline_s: float = Field(600.0, gt=0, description="seconds for resources to be granted, and for engines to start")


class WarmStartSection(Section):
    """Supervised training on demonstrations before the first update, and what is in the pool by then."""

    updates: int = Field(0, ge=0, description="supervised updates; 0: no warm start")
    source: Literal["teacher", "transcripts", "replay"] = Field(
        "teacher", description="of demonstrations: the environment's scripted teacher, or a file (path)"
    )
    path: Path | None = Field(
        None,
        description="transcripts: chats with tool calls as JSON lines; replay: a `cacherl replay export`, its successes only",
    )
    prefill: Path | None = Field(None, description="a `cacherl replay export` that the pool of a new run begins with")
    batch_size: int = Field(32, ge=1, description="demonstrations per optimizer step")
    lr: float = Field(1e-3, gt=0)
    demonstrations: int = Field(8192, ge=1, description="distinct demonstrations generated, or most that are read")
    sloppiness: float = Field(
        0.0, ge=0, lt=1, description="chance that the teacher stops early at a hop or gives up on a failure"
    )
    cache_dir: Path = Field(Path("~/.cache/cacherl"), description="of earlier warm starts, for runs with the same settings")

    @model_validator(mode="after")
    def _used(self) -> WarmStartSection:
        if (self.path is None) != (self.source == "teacher"):
            raise ValueError(
                f"source {self.source} and path {self.path}: sources transcripts and replay need a path, teacher none"
            )
        if self.sloppiness and self.source != "teacher":
            raise ValueError(f"sloppiness {self.sloppiness:g} is the teacher's, source {self.source} has none; set it to 0")
        return self


class ScheduleSection(Section):
    """How the learning rate changes over the updates."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = Field(0, ge=0, description="updates over which the rate rises linearly to learner.lr")
    final: float = Field(0.0, ge=0, le=1, description="share of learner.lr that linear and cosine end at")
    updates: int | None = Field(None, ge=1, description="updates until then; null: run.updates")

    @model_validator(mode="after")
    def _used(self) -> ScheduleSection:
        if self.kind == "constant" and (self.final, self.updates) != (0.0, None):
            raise ValueError("final and updates say how a rate falls, kind constant does not; set kind to linear or cosine")
        if self.updates is not None and self.updates <= self.warmup:
            raise ValueError(f"updates {self.updates} must exceed warmup {self.warmup}, or there is nothing left to fall over")
        return self


class LoraSection(Section):
    """Training small matrices beside frozen weights; what the engines get is merged."""

    rank: int = Field(0, ge=0, description="of the matrices; 0: all weights are trained")
    alpha: int = Field(32, ge=1, description="the change is alpha / rank * B @ A")
    targets: tuple[str, ...] = Field(
        ("all-linear",), min_length=1, description="names of the layers, such as q_proj; all-linear: all but the output layer"
    )

    @model_validator(mode="after")
    def _used(self) -> LoraSection:
        if self.rank == 0 and self != type(self).model_construct(rank=0):
            raise ValueError("alpha and targets without a rank have no effect; set rank")
        return self


class LearnerSection(Section):
    """The DeepSpeed group."""

    workers: int = Field(1, ge=1, description="ranks")
    cpus_per_worker: float = Field(1.0, ge=0, description="that Ray reserves")
    gpus_per_worker: int = Field(0, ge=0, le=1, description="0: on CPU")
    threads: int = Field(1, ge=1, description="CPU threads of one rank while actors run")
    warm_start_threads: int | None = Field(
        None, ge=1, description="CPU threads of one rank before they run; null: all cores shared"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0,
        description="what is partitioned over the ranks: optimizer's state (1, in bfloat16 at 0 too), gradients too (2), "
        "weights too (3)",
    )
    batch_size: int = Field(128, ge=1, description="trajectories per optimizer step, whole groups")
    epochs: int = Field(1, ge=1, description="passes over one sampled batch")
    mini_batch_size: int | None = Field(
        None, ge=1, description="most trajectories of one forward pass of one rank; null: as many as micro_batch_tokens hold"
    )
    gradient_accumulation_steps: int | None = Field(
        None, ge=1, description="mini-batches of each rank per optimizer step; null: all, one step per epoch"
    )
    micro_batch_tokens: int = Field(16_384, ge=16, description="tokens of one forward pass of one rank, padding included")
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="what ZeRO keeps in host memory: the optimizer's state (stage 1 to 3), weights too (stage 3)"
    )
    activation_checkpointing: bool = Field(False, description="recompute activations in the backward pass: memory for time")
    lora: LoraSection = LoraSection()
    packing: bool = Field(False, description="several trajectories in one row, kept apart by the attention mask")
    lr: float = Field(1e-4, ge=0)
    schedule: ScheduleSection = ScheduleSection()
    betas: tuple[float, float] = Field((0.9, 0.999), description="of AdamW")
    adam_epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0, description="global norm that gradients are clipped to")
    grad_spike: float | None = Field(
        None, gt=1, description="multiple of the recent mean gradient norm above which a step is skipped; null: never"
    )
    start_deadline_s: float = Field(600.0, gt=0, description="seconds for the ranks to load the model")
    update_deadline_s: float = Field(1800.0, gt=0, description="seconds of one update, or one checkpoint")

    @model_validator(mode="after")
    def _possible(self) -> LearnerSection:
        needed = {"none": 0, "optimizer": 1, "all": 3}[self.offload]
        if self.zero_stage < needed:
            raise ValueError(f"offload {self.offload} needs zero_stage {needed} or more, got {self.zero_stage}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {list(self.betas)}")
        return self

    @model_validator(mode="after")
    def _all_used(self) -> LearnerSection:
        if self.mini_batch_size is None:
            self.refuse_idle(("gradient_accumulation_steps",), "learner.mini_batch_size")
        return self


class WeightsSection(Section):
    """How new weights reach the engines."""

    publish_every: int = Field(1, ge=1, description="optimizer steps between publishes")
    deadline_s: float = Field(120.0, gt=0, description="for every engine to acknowledge a version")


class EvalSection(Section):
    """Greedy evaluation on held-out tasks."""

    tasks: int = Field(200, ge=1, description="held-out tasks, the same ones every time")
    every: int = Field(10, ge=1, description="updates between evaluations; also at the start and the end")
    deadline_s: float = Field(600.0, gt=0, description="seconds of one evaluation")


class CheckpointSection(Section):
    """What a killed run can be resumed from."""

    every: int = Field(20, ge=0, description="updates between checkpoints, and one after the last; 0: none at all")
    keep_last: int = Field(2, ge=1, description="newest checkpoints kept")
    keep_best: int = Field(
        1, ge=0, description="checkpoints of the highest held-out success kept besides; a new best one is saved at once"
    )
    asynchronous: bool = Field(True, description="write in the background, from a copy in memory, while updates go on")
    dir: Path | None = Field(None, description="<dir>/<run.name> holds them, shared by all ranks; null: the run's folder")


class MetricsSection(Section):
    """Where metrics go besides the console."""

    jsonl: bool = Field(True, description="metrics.jsonl of the run's folder, which the report is made of")
    tensorboard: bool = Field(True, description="tensorboard/ of the run's folder")
    ray: bool = Field(True, description="export through ray.util.metrics")


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


class AlarmsSection(Section):
    """What a person is warned of while the run goes on."""

    reward_hacking: RewardHackingSection = RewardHackingSection()
    learner: LearnerAlarmsSection = LearnerAlarmsSection()


class RayClusterSection(Section):
    """Which Ray cluster to run on."""

    address: str | None = Field(None, description="null: the job's cluster, else a local one started with the run")
    dashboard: bool = Field(True, description="of a local cluster")
    autoscaling: bool = Field(False, description="the cluster grows on demand: wait instead of refusing a larger run")


class RunConfig(Section):
    """The whole tree. Load it with `load_config`."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    env: EnvSection = EnvSection()
    curriculum: CurriculumSection = CurriculumSection()
    rollout: RolloutSection = RolloutSection()
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
        self._check_learning()
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
