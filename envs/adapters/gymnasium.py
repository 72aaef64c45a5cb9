"""Text environments of the Gymnasium kind, by their methods alone: `reset(seed=, options=)`, `step(text)`, perhaps `close()`.

def make_source(section):                      # env.name=my_package.my_env:make_source
    return gymnasium_source(section, lambda: gymnasium.make("MyTextGame-v0"))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from cacherl.environment_settings import EnvSection
from cacherl.errors import EnvironmentFault
from cacherl.trajectory import Message
from envs.adapters.suite import SuiteSource
from envs.adapters.text_world import NoCalls, Outcome, TextStep, TextWorld, clipped, no_solution
from envs.base import ActionFormat
from envs.jsontext import compact

#: Prompts kept, since the siblings of a group begin with the same one.
_KEPT = 1024

#: A task: its level and its seed.
LevelSeed = tuple[int, int]


def gymnasium_source(
    section: EnvSection,
    make: Callable[[], Any],
    *,
    family: str = "gymnasium",
    levels: Sequence[int] = (1,),
    seeds: int = 4096,
    outcome: Outcome = clipped,
) -> SuiteSource[LevelSeed]:
    """Seeds of an environment as tasks; the first observation is the prompt.

    Args:
        make: a new environment, for one episode.
        levels: are told to the environment as `options={"level": …}` of `reset`.
        seeds: tasks of a level; a quarter is held out.
        outcome: see `Outcome`.

    Raises:
        ConfigError: the tool-result cache is on.
    """
    if missing := [name for name in ("reset", "step") if not callable(getattr(make(), name, None))]:
        raise EnvironmentFault(f"family {family!r}: its environment has no {' and no '.join(missing)}")

    @lru_cache(maxsize=_KEPT)
    def prompt(item: LevelSeed) -> str:
        episode = GymnasiumEpisode(make(), item)
        episode.close()
        return episode.first

    def messages(item: LevelSeed, action_format: ActionFormat) -> tuple[Message, ...]:
        del action_format
        return (Message(role="user", content=prompt(item)),)

    return SuiteSource(
        section,
        family,
        {level: [(level, seed) for seed in range(seeds)] for level in levels},
        messages=messages,
        start=lambda item: TextWorld(lambda: GymnasiumEpisode(make(), item), outcome),
        solution=no_solution,
        form=NoCalls(),
    )


class GymnasiumEpisode:
    """One episode. Observations that are not text are shown as JSON, or as Python writes them."""

    def __init__(self, env: Any, item: LevelSeed) -> None:
        level, seed = item
        self._env = env
        observation, _ = env.reset(seed=seed, options={"level": level})
        self.first = _text(observation)

    def act(self, text: str) -> TextStep:
        observation, reward, terminated, truncated, info = self._env.step(text)
        messages = (Message(role="user", content=_text(observation)),)
        return TextStep(messages=messages, reward=float(reward), done=bool(terminated or truncated), info=info)

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()


def _text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    try:
        return compact(observation)
    except (TypeError, ValueError):
        return str(observation)
