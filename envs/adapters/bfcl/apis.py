"""`Apis`: the simulated APIs of one side of one episode, called by name with JSON arguments."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from envs.adapters.bfcl.package import Entry, api_class, tool_specs

#: Arguments that would keep the processor busy for ever. Tool -> argument -> largest magnitude.
_CAPS: dict[str, dict[str, float]] = {
    "power": {"exponent": 1000, "base": 1e12},
    "square_root": {"precision": 1000},
    "logarithm": {"precision": 1000},
    "round_number": {"decimal_places": 1000},
}


class Apis:
    """Instances of an entry's classes in their first state. Shares nothing with any other."""

    def __init__(self, entry: Entry) -> None:
        self._instances: dict[str, Any] = {name: api_class(name)() for name in entry.classes}
        self._methods: dict[str, Any] = {}
        for name, instance in self._instances.items():
            if hasattr(instance, "_load_scenario"):
                instance._load_scenario(copy.deepcopy(entry.config.get(name, {})), long_context=entry.long_context)
            self._methods |= {tool: getattr(instance, tool) for tool in tool_specs(name) if hasattr(instance, tool)}

    def __contains__(self, tool: str) -> bool:
        return tool in self._methods

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The result as the official executor writes it, errors included. Only documented methods can be reached."""
        try:
            _check_caps(tool, arguments)
            result = self._methods[tool](**copy.deepcopy(dict(arguments)))
            if isinstance(result, str):
                return result
            if isinstance(result, dict):
                try:
                    return json.dumps(result)
                except (TypeError, ValueError):
                    return str(result)
            return str(result)
        except Exception as error:  # of the simulated tool: the official executor answers with it, too
            return f"Error during execution: {error}"

    def same_state(self, other: Apis) -> bool:
        """All public attributes of all instances are equal: the official state check, `other` being the ground truth."""
        return all(
            getattr(self._instances[name], attribute) == value
            for name, instance in other._instances.items()
            for attribute, value in instance.__dict__.items()
            if not attribute.startswith("_")
        )


def _check_caps(tool: str, arguments: Mapping[str, Any]) -> None:
    for name, limit in _CAPS.get(tool, {}).items():
        value = arguments.get(name)
        if isinstance(value, int | float) and abs(value) > limit:
            raise ValueError(f"{name} must be at most {limit:g}")
