"""A research environment that calls every call needed and new: a reward for tool use then pays for each of them, the exploit
that the first-time rule shuts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cacherl.environment_settings import EnvSection
from envs.base import EnvStep
from envs.registry import load_source


class _Paying:
    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def step(self, text: str, *, finish_reason: str = "stop") -> EnvStep:
        step: EnvStep = await self._env.step(text, finish_reason=finish_reason)
        return replace(step, calls=tuple(replace(call, tags=("needed", "first")) for call in step.calls))


def paying(section: EnvSection) -> Any:
    """The source of the family, with paying environments."""
    source = load_source(section.model_copy(update={"name": "research"}))
    make_env = source.make_env
    source.make_env = lambda: _Paying(make_env())  # type: ignore[method-assign]
    return source
