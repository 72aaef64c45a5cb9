"""The sections that decide what the agent is given to do: tasks, tools and their results, the jail, the curriculum."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer, model_validator

from cacherl.replay_settings import without_password
from cacherl.section import Section


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
