"""Where the demonstrations of a warm start come from, and what a new run's pool begins with."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actors.briefing import briefed_chat
from actors.demonstrations import demonstrate
from actors.episode import EpisodeLimits
from actors.policy import Sampling
from actors.transcripts import read_transcripts
from cacherl.config import RunConfig
from cacherl.errors import ConfigError
from cacherl.policy import FIRST_VERSION
from cacherl.trajectory import Trajectory, TrajectoryGroup
from deploy.tasks import draw_task
from envs.agents import TeacherAgent
from envs.base import TRAIN, TaskSource
from envs.parser import action_format
from envs.registry import load_source
from replay_service.archive import ImportResult, import_pool, read_archive
from replay_service.store import Replay

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def load_demonstrations(config: RunConfig, source: TaskSource, base: Path) -> list[Trajectory]:
    """The demonstrations that `warm_start.source` names.

    Args:
        base: folder of the model that will imitate them.

    Raises:
        ConfigError: the file is not what the source says, or holds nothing that can be imitated.
        EnvironmentFault: the teacher's environment failed.
    """
    from transformers import AutoTokenizer

    return await _SOURCES[config.warm_start.source](config, source, AutoTokenizer.from_pretrained(base))


async def _by_teacher(config: RunConfig, source: TaskSource, tokenizer: PreTrainedTokenizerBase) -> list[Trajectory]:
    section = config.warm_start
    tasks = [draw_task(source, config, split=TRAIN, number=-1 - index) for index in range(section.demonstrations)]
    limits = EpisodeLimits(
        max_turns=config.env.max_turns, max_length=config.model.max_length, timeout_s=config.rollout.episode_timeout_s
    )
    patient = load_source(config.env.model_copy(update={"latency_s": 0.0}))  # a teacher waits for no simulated tool
    return await demonstrate(
        tasks,
        lambda index: TeacherAgent(patient, sloppiness=section.sloppiness, seed=index),
        source=patient,
        chat=briefed_chat(tokenizer, config, patient),
        limits=limits,
        sampling=Sampling(temperature=config.rollout.temperature, max_new_tokens=config.rollout.max_new_tokens),
    )


async def _from_transcripts(config: RunConfig, source: TaskSource, tokenizer: PreTrainedTokenizerBase) -> list[Trajectory]:
    section = config.warm_start
    assert section.path is not None
    calls = action_format(config.env.action_format)
    path, length = section.path.expanduser(), config.model.max_length
    return read_transcripts(path, tokenizer, calls, max_length=length, limit=section.demonstrations)


async def _from_replay(config: RunConfig, source: TaskSource, tokenizer: PreTrainedTokenizerBase) -> list[Trajectory]:
    section = config.warm_start
    assert section.path is not None
    kept: list[Trajectory] = []
    with _readable(section.path, "warm_start.path"):
        for _, group in read_archive(section.path.expanduser()):
            _check_tokens(group, tokenizer, "warm_start.path")
            kept += [one for one in group.trajectories if one.outcome >= 1 and len(one) <= config.model.max_length]
    if not kept:
        raise ConfigError(f"warm_start.path: {section.path} holds no success of at most model.max_length tokens")
    return kept[: section.demonstrations]


_SOURCES: dict[str, Callable[[RunConfig, TaskSource, PreTrainedTokenizerBase], Awaitable[list[Trajectory]]]] = {
    "teacher": _by_teacher,
    "transcripts": _from_transcripts,
    "replay": _from_replay,
}


def prefill(config: RunConfig, pool: Replay, base: Path) -> ImportResult:
    """Fill the pool of a new run from `warm_start.prefill`.

    The groups' tokens count as sampled by the first version: the versions of another run mean nothing in this one.
    Their behaviour log-probabilities are kept, so that the ratio to this run's policy is right.

    Args:
        base: folder of the model that will be trained on them.

    Raises:
        ConfigError: the file cannot be read, or its tokens are not the model's.
        CodecError: not an exported pool, or damaged.
    """
    from transformers import AutoTokenizer

    path = config.warm_start.prefill
    assert path is not None
    tokenizer = AutoTokenizer.from_pretrained(base)

    def prepare(group: TrajectoryGroup) -> TrajectoryGroup | None:
        _check_tokens(group, tokenizer, "warm_start.prefill")
        return _of_first_version(group) if max(map(len, group.trajectories)) <= config.model.max_length else None

    with _readable(path, "warm_start.prefill"):
        return import_pool(pool, path.expanduser(), prepare=prepare)


@contextmanager
def _readable(path: Path, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error})") from None


def _check_tokens(group: TrajectoryGroup, tokenizer: PreTrainedTokenizerBase, key: str) -> None:
    """Refuse tokens of another model: numbers that this one's tokenizer does not have, or reads as another text."""
    highest, vocabulary = max(int(one.token_ids.max()) for one in group.trajectories), len(tokenizer)
    if highest >= vocabulary:
        raise ConfigError(f"{key}: token {highest} of group {group.group_id} is not in the model's vocabulary of {vocabulary}")
    own = ((one, turn) for one in group.trajectories if not one.foreign for turn in one.turns if turn.text)
    for one, turn in itertools.islice(own, 1):
        ids = one.token_ids[slice(*turn.completion)].tolist()
        read = str(tokenizer.decode(ids, skip_special_tokens=False)).removesuffix(str(tokenizer.eos_token))
        if read.split() != turn.text.split():
            raise ConfigError(
                f"{key}: group {group.group_id} is of a model with another tokenizer, by which {turn.text!r:.80} was sampled; "
                f"the model's own reads {read!r:.80}"
            )


def _of_first_version(group: TrajectoryGroup) -> TrajectoryGroup:
    members = tuple(
        dataclasses.replace(one, policy_versions=np.where(one.loss_mask, FIRST_VERSION, one.policy_versions).astype(np.int32))
        for one in group.trajectories
    )
    return dataclasses.replace(group, trajectories=members)
