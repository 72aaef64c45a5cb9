"""Environments of the SkyRL-gym kind, by their methods alone: `init(prompt)`, `step(action)`, perhaps `close()`.

def make_source(section):                      # env.name=my_package.my_env:make_source
    return skyrl_source(section, rows, lambda row: skyrl_gym.make("gsm8k", env_config=…, extras=row))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from cacherl.trajectory import Message
from envs.adapters.suite import SuiteSource
from envs.adapters.text_world import NoCalls, Outcome, TextStep, TextWorld, clipped, no_solution
from envs.base import ActionFormat

Row = Mapping[str, Any]


def skyrl_source(
    section: EnvSection,
    rows: Sequence[Row],
    make: Callable[[Row], Any],
    *,
    family: str = "skyrl",
    outcome: Outcome = clipped,
) -> SuiteSource[Row]:
    """Rows of a data set as tasks, a quarter held out; all are of level 1, or of the level under their key 'level'.

    Args:
        rows: each with its 'prompt', a list of chat messages, and whatever else the environment needs.
        make: a new environment for one episode of a row.
        outcome: see `Outcome`.

    Raises:
        ConfigError: a row has no prompt of chat messages; the tool-result cache is on.
    """
    levels: dict[int, list[Row]] = {}
    for number, row in enumerate(rows):
        prompt = row.get("prompt")
        if not prompt or not all(isinstance(part, Mapping) and {"role", "content"} <= part.keys() for part in prompt):
            raise ConfigError(f"family {family!r}: row {number} has no 'prompt' of chat messages, got {prompt!r:.60}")
        levels.setdefault(row.get("level", 1), []).append(row)

    def messages(row: Row, action_format: ActionFormat) -> tuple[Message, ...]:
        del action_format
        prompt, _ = make(row).init(copy.deepcopy(row["prompt"]))
        return tuple(map(_message, prompt))

    return SuiteSource(
        section,
        family,
        dict(sorted(levels.items())),
        messages=messages,
        start=lambda row: TextWorld(lambda: SkyRLEpisode(make(row), row), outcome),
        solution=no_solution,
        form=NoCalls(),
    )


class SkyRLEpisode:
    """One episode; `step` may return a dict or an object of the same fields."""

    def __init__(self, env: Any, row: Row) -> None:
        self._env = env
        env.init(copy.deepcopy(row["prompt"]))

    def act(self, text: str) -> TextStep:
        step = self._env.step(text)
        get = step.get if isinstance(step, Mapping) else lambda name, default=None: getattr(step, name, default)
        return TextStep(
            messages=tuple(map(_message, get("observations") or ())),
            reward=float(get("reward") or 0.0),
            done=bool(get("done")),
            info=get("metadata") or {},
        )

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()


def _message(value: Mapping[str, Any]) -> Message:
    return Message(role=value["role"], content=value["content"])
