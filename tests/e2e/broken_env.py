"""A research environment whose steps fail in the actors: a fault of the environment, not of the model."""

from __future__ import annotations

from typing import Any

from cacherl.environment_settings import EnvSection
from envs.registry import load_source


class _Broken:
    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def step(self, text: str, *, finish_reason: str = "stop") -> Any:
        import ray

        if ray.is_initialized():  # not in the driver's preflight, which would refuse to start
            raise RuntimeError("the planted fault")
        return await self._env.step(text, finish_reason=finish_reason)


def broken(section: EnvSection) -> Any:
    """The source of the family, with broken environments."""
    source = load_source(section.model_copy(update={"name": "research"}))
    make_env = source.make_env
    source.make_env = lambda: _Broken(make_env())  # type: ignore[method-assign]
    return source
