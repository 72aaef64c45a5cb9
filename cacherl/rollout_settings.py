"""The sections that decide how episodes are sampled, and by what."""

from __future__ import annotations

from pydantic import Field

from cacherl.section import Section


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
