"""What a run of a config does, seen at the part of the program that reads the setting, each at the smallest size."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from actors.chat import Chat
from actors.policy import Sampling
from actors.scoring import composer_of
from actors.worker import make_rollout
from cacherl.config import RunConfig
from deploy.loop import Loop
from deploy.run_dir import RunDirectory
from deploy.tasks import TaskStream
from deploy.tiny_model import build_tokenizer
from envs.base import PlannedCall
from envs.registry import load_source
from fakes import FakePolicy
from learner_data import group
from replay_service.plan import SamplePlan
from replay_service.server import ReplayServer
from replay_service.store import Replay
from reward_data import episode, good, says
from rewards.composer import Composer


async def folder(config: RunConfig, place: Path) -> str:
    """The run's folder within `place`."""
    there = config.model_copy(update={"run": config.run.model_copy(update={"dir": place})})
    return str(RunDirectory(there).path.relative_to(place))


async def goes_on_after_100(config: RunConfig, place: Path) -> bool:
    """Whether the loop asks for another batch at version 100."""

    class AskedForABatch(Exception):
        pass

    async def wait(_: str) -> None:
        raise AskedForABatch

    loop = SimpleNamespace(config=config, version=100, stream=SimpleNamespace(prefix="p"), _wait_for_batch=wait)
    try:
        await Loop._updates(loop)  # type: ignore[arg-type]
    except AskedForABatch:
        return True
    return False


async def family_played(config: RunConfig, place: Path) -> str:
    """The family of the first task."""
    return TaskStream(load_source(config.env), config, "run")().task.family


async def turns_of_the_lost(config: RunConfig, place: Path) -> list[int]:
    """Turns of each member of the first group, whose policy calls a tool that is not there for ever."""
    source = load_source(config.env)
    chat = Chat(build_tokenizer([*source.vocabulary(), "nothing"], source.tags(), config.model.max_length))
    lost = FakePolicy(chat.completion_ids, [source.format.render([PlannedCall(name="nothing", arguments={})])])
    rollout = make_rollout(
        config, lost, source, chat, composer_of(config, source), Sampling(temperature=1.0, max_new_tokens=16)
    )
    played = await rollout.group(TaskStream(source, config, "run")())
    assert played.group is not None, played.errors
    return [len(member.turns) for member in played.group.trajectories]


async def paid(config: RunConfig, place: Path) -> float:
    """The reward of a success in two turns, with one needed call whose result is used."""
    call = says("[CALL] find", (good("needed", "first"), '{"id": "zq81"}'))
    played = episode(call, says("[ANSWER] zq81"), outcome=1.0)
    return round(Composer.from_config(config).score([played])[0].total_reward, 6)


async def pool(config: RunConfig, place: Path) -> tuple[int, list[bool]]:
    """(groups evicted after 12 of 8 trajectories came, whether each of three batches of 6 could be drawn of them)."""
    rng = np.random.default_rng(0)
    with ReplayServer(place) as server, Replay(server.url, "pool", config.replay) as replay:
        for index in range(12):
            replay.push(group(rng, f"g{index}", size=8), priority=1.0)
        evicted = replay.stats().evicted
        return evicted, [isinstance(replay.try_sample(f"batch-{number}", 6), SamplePlan) for number in range(3)]
