"""The tools of a toolkit, from itself or from a recording: in mode 'replay' no server is asked, not even for its list."""

from __future__ import annotations

import json

from cacherl.errors import ConfigError
from envs.base import ToolSpec
from envs.jsontext import compact
from envs.live.toolkit import Toolkit
from envs.tool_cache.cache import ToolCache


def listed_tools(toolkit: Toolkit, mode: str, cache: ToolCache | None) -> tuple[ToolSpec, ...]:
    """The tools of `toolkit`, recorded if `cache` records.

    Raises:
        ConfigError: the mode is 'replay' and nothing was recorded.
        EnvironmentFault: its server does not tell.
    """
    if cache is None:
        return toolkit.specs()
    if mode == "replay":
        listing = cache.listing(toolkit.name)
        if listing is None:
            raise ConfigError(
                f"env.tool_cache: nothing is recorded of toolkit {toolkit.name!r}; run once with env.tool_cache.mode=record"
            )
        return tuple(ToolSpec(**tool) for tool in json.loads(listing))
    specs = toolkit.specs()
    cache.record_listing(toolkit.name, compact([_plain(spec) for spec in specs]))
    return specs


def _plain(spec: ToolSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
        "read_only": spec.read_only,
        "cost": spec.cost,
    }
