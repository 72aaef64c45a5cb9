"""The reward of a run's episodes, where environment and components meet."""

from __future__ import annotations

from cacherl.config import RunConfig
from envs.base import TaskSource
from rewards.composer import Composer


def composer_of(config: RunConfig, source: TaskSource) -> Composer:
    """The configured reward for episodes of `source`.

    Raises:
        ConfigError: a component cannot be made, or the others could outweigh the final one.
    """
    return Composer.from_config(config, {tool.name: tool.cost for tool in source.tools()})
