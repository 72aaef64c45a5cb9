"""`MixedSource`: several families in one run, each with its weight."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cacherl.errors import ConfigError, EnvironmentFault
from envs.base import ActionFormat, EnvStep, Solution, Task, TaskSource, ToolEnv, ToolSpec

#: Largest weight of a part; sums of weights stay finite.
_HEAVIEST = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One family of a run. `weight`: its share of the tasks, relative to the others'."""

    source: TaskSource
    weight: float = 1.0


def mixture(name: str) -> dict[str, float]:
    """The environments that `env.name` names, with their weights: 'research*2+trip' -> research 2.0, trip 1.0.

    Raises:
        ConfigError: a weight is not a positive number up to `_HEAVIEST`, or a name comes twice.
    """
    weights: dict[str, float] = {}
    for item in name.split("+"):
        part, star, weight = item.partition("*")
        if star and not _positive(weight):
            raise ConfigError(
                f"env.name {name!r}: the weight of {part!r} must be a positive number up to {_HEAVIEST:g}, got {weight!r}"
            )
        if part in weights:
            raise ConfigError(f"env.name {name!r}: {part!r} comes twice; give it a weight, as in '{part}*2'")
        weights[part] = float(weight) if star else 1.0
    return weights


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) <= _HEAVIEST
    except ValueError:
        return False


class MixedSource:
    """A `TaskSource` of several. Tasks keep the family and the id that they have alone.

    Raises:
        ConfigError: two of them have one family name, or different tools of one name.
    """

    family = "mix"

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self.parts: dict[str, Part] = {}
        tools: dict[str, ToolSpec] = {}
        for name, part in parts.items():
            if part.source.family in self.parts:
                raise ConfigError(f"env.name: {name!r} is of family {part.source.family!r}, as another part of the mix is")
            self.parts[part.source.family] = part
            for spec in part.source.tools():
                if tools.setdefault(spec.name, spec) != spec:
                    raise ConfigError(
                        f"env.name: {name!r} and another part of the mix have different tools called {spec.name!r}, "
                        "which one model could not tell apart"
                    )
        self._tools = tuple(tools.values())

    @property
    def format(self) -> ActionFormat:
        return next(iter(self.parts.values())).source.format

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    def levels(self, split: str) -> tuple[int, ...]:
        return tuple(sorted({level for part in self.parts.values() for level in part.source.levels(split)}))

    def sample(self, rng: random.Random, *, split: str, level: int) -> Task:
        able = [part for part in self.parts.values() if level in part.source.levels(split)]
        if not able:
            raise ValueError(f"no part of the mix has level {level} in split {split!r}")
        (part,) = rng.choices(able, [part.weight for part in able])
        return part.source.sample(rng, split=split, level=level)

    def get(self, task_id: str) -> Task:
        for part in self.parts.values():
            try:
                return part.source.get(task_id)
            except ValueError:
                continue
        raise ValueError(f"task id {task_id!r} is of none of the families {', '.join(self.parts)}")

    def solution(self, task: Task) -> Solution:
        return self.parts[task.family].source.solution(task)

    def tags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tag for part in self.parts.values() for tag in part.source.tags()))

    def vocabulary(self) -> Iterator[str]:
        return iter(dict.fromkeys(word for part in self.parts.values() for word in part.source.vocabulary()))

    def make_env(self) -> MixedEnv:
        return MixedEnv(self)


class MixedEnv:
    """An environment that becomes, at every reset, one of the task's family."""

    def __init__(self, source: MixedSource) -> None:
        self._source = source
        self._env: ToolEnv | None = None

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._source.tools()

    async def reset(self, task: Task, *, rollout_seed: int) -> None:
        await self.close()
        self._env = self._source.parts[task.family].source.make_env()
        await self._env.reset(task, rollout_seed=rollout_seed)

    async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
        return await self._running().step(text, finish_reason=finish_reason)

    def snapshot(self) -> dict[str, Any]:
        return self._running().snapshot()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._running().restore(snapshot)

    def verdict(self) -> float:
        return self._running().verdict()

    async def close(self) -> None:
        if self._env is not None:
            await self._env.close()
        self._env = None

    def _running(self) -> ToolEnv:
        if self._env is None:
            raise EnvironmentFault("no episode: call reset first")
        return self._env


def parts_of(source: TaskSource) -> dict[str, Part]:
    """Family -> part; of a source that is no mix, itself alone."""
    return source.parts if isinstance(source, MixedSource) else {source.family: Part(source=source)}
