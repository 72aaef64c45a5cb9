"""What is taken from the package agentdojo: its suites of user tasks, with their tools and environments."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cacherl.errors import ConfigError
from envs.base import ToolSpec

#: Suites by level.
SUITES = {1: "banking", 2: "slack", 3: "workspace", 4: "travel"}
#: Version of the benchmark: the newest that the package holds.
VERSION = "v1.2.2"

_PIPELINE = "agentdojo.agent_pipeline"
_INSTALL = (
    "install it with: pip install --no-deps agentdojo==0.1.35 deepdiff cachebox orderly-set docstring-parser "
    "email-validator dnspython"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTask:
    """One user task of a suite; `task` is agentdojo's own object, which holds no state of an episode."""

    suite: str
    task: Any

    def environment(self) -> Any:
        """The environment that the task begins in, new every time."""
        return self.task.init_environment(copy.deepcopy(_default_environment(self.suite)))


@cache
def user_tasks(suite: str) -> tuple[UserTask, ...]:
    """The user tasks of a suite, in its order.

    Raises:
        ConfigError: the package, or something that its suites import, is absent.
    """
    return tuple(UserTask(suite=suite, task=task) for task in _suites()[suite].user_tasks.values())


@cache
def tool_specs(suite: str) -> tuple[ToolSpec, ...]:
    """The tools of a suite."""
    return tuple(_spec(function) for function in _suites()[suite].tools)


@cache
def runtime(suite: str) -> Any:
    """agentdojo's runtime of a suite's functions; it holds no state of an episode."""
    from agentdojo.functions_runtime import FunctionsRuntime

    return FunctionsRuntime(_suites()[suite].tools)


@cache
def _default_environment(suite: str) -> Any:
    return _suites()[suite].load_and_inject_default_environment({})


@cache
def _suites() -> Mapping[str, Any]:
    spec = importlib.util.find_spec("agentdojo")
    if spec is None or spec.origin is None:
        raise ConfigError(f"family 'agentdojo' needs the package agentdojo; {_INSTALL}")
    try:
        with _without_model_clients(Path(spec.origin).parent / "agent_pipeline"):
            suites = importlib.import_module("agentdojo.task_suite.load_suites")
    except ImportError as error:
        raise ConfigError(f"family 'agentdojo' cannot be loaded ({error}); {_INSTALL}") from error
    return dict(suites.get_suites(VERSION))


@contextmanager
def _without_model_clients(folder: Path) -> Iterator[None]:
    """Let the suites be imported without the pipelines, which import the clients of five vendors and are not needed."""
    if _PIPELINE in sys.modules:
        yield
        return
    package = types.ModuleType(_PIPELINE)
    package.__path__ = [str(folder)]
    unused = types.ModuleType(f"{_PIPELINE}.ground_truth_pipeline")
    unused.GroundTruthPipeline = object  # type: ignore[attr-defined]
    placed = {module.__name__: module for module in (package, unused)}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name in placed:
            sys.modules.pop(name, None)


def _spec(function: Any) -> ToolSpec:
    schema = function.parameters.model_json_schema()
    parameters = {key: value for key, value in schema.items() if key in ("properties", "required", "$defs")}
    return ToolSpec(
        name=function.name,
        description=function.description,
        parameters={"type": "object", "properties": {}, **parameters, "additionalProperties": False},
        read_only=False,
    )
