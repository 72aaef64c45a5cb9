"""The sections of what trains: the learner's group, its schedule and LoRA, the warm start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from cacherl.section import Section


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
