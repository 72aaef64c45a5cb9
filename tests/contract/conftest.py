"""Real servers for the contract tests: the same cases run on redis-server and on the embedded Valkey."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacherl.replay_settings import ReplaySettings
from cacherl.trajectory import NO_VERSION, Status, Trajectory, TrajectoryGroup, Turn
from replay_service.binary import find_bundled_server
from replay_service.server import ReplayServer
from replay_service.store import Replay

_names = itertools.count()

MakePool = Callable[..., Replay]
MakeGroup = Callable[..., TrajectoryGroup]


def _binary(kind: str) -> Path:
    path = shutil.which("redis-server") if kind == "redis" else find_bundled_server()
    if path is None:
        pytest.skip(f"no {kind} server installed")
    return Path(path)


@pytest.fixture(scope="session", params=["redis", "valkey"])
def server_binary(request: pytest.FixtureRequest) -> Path:
    return _binary(request.param)


@pytest.fixture(scope="session")
def server(server_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayServer]:
    with ReplayServer(tmp_path_factory.mktemp("server"), binary=server_binary) as running:
        yield running


@pytest.fixture(scope="session")
def shard_servers(server_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ReplayServer]]:
    """Two more servers of the same kind."""
    with (
        ReplayServer(tmp_path_factory.mktemp("shard"), binary=server_binary) as one,
        ReplayServer(tmp_path_factory.mktemp("shard"), binary=server_binary) as two,
    ):
        yield [one, two]


def free_settings(**changes: Any) -> ReplaySettings:
    """Settings without any limit but those that a test asks for."""
    unlimited: dict[str, Any] = {
        "capacity": 100_000,
        "priority_exponent": 1.0,
        "freshness_half_life": None,
        "warmup_steps": 0,
        "update_frequency": 0,
        "max_staleness": None,
        "max_uses": None,
        "deadline_s": 5.0,
    }
    return ReplaySettings(**{**unlimited, **changes})


@pytest.fixture
def make_pool(server: ReplayServer) -> Iterator[MakePool]:
    """Open a pool of a fresh namespace, or of the one given, on the server `at`, with `free_settings` and the changes given."""
    opened: list[Replay] = []

    def make(namespace: str | None = None, *, seed: int | None = 0, at: str = server.url, **changes: Any) -> Replay:
        pool = Replay(at, namespace or f"test-{next(_names)}", free_settings(**changes), seed=seed)
        opened.append(pool)
        return pool

    yield make
    for pool in opened:
        pool.clear()
        pool.close()


@pytest.fixture
def make_group() -> MakeGroup:
    """A group by id; `wins` of its `size` members succeed."""

    def make(
        group_id: str, *, version: int = 0, size: int = 2, task: str = "task", wins: int = 1, tokens: int = 8
    ) -> TrajectoryGroup:
        members = tuple(_trajectory(f"{group_id}-{i}", task, version, float(i < wins), tokens) for i in range(size))
        return TrajectoryGroup(group_id=group_id, task_id=task, trajectories=members)

    return make


def _trajectory(name: str, task: str, version: int, outcome: float, tokens: int) -> Trajectory:
    mask = np.zeros(tokens, dtype=np.bool_)
    mask[2:6] = True
    return Trajectory(
        trajectory_id=name,
        task_id=task,
        family="test",
        level=1,
        split="train",
        token_ids=np.arange(tokens, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        policy_versions=np.where(mask, version, NO_VERSION).astype(np.int32),
        temperature=1.0,
        turns=(Turn(completion=(2, 6), observation=(6, tokens), text="answer"),),
        rewards={"final": outcome},
        outcome=outcome,
        status=Status(kind="terminated"),
        task_seed=1,
        rollout_seed=2,
    )
