"""Passwords and keys of the driver reach actors and learner ranks on any node, and no file of Ray's or ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from actors.worker import RolloutWorker, WorkerSpec
from cacherl.config import RunConfig, parse_config
from cacherl.secrets import Secrets
from deploy.cluster import cluster
from deploy.priority import FreshPriority
from deploy.shipping import secrets_to_ship
from learner.rank_actor import RankActor
from replay_service.server import ReplayServer

PASSWORD, KEY = "a-password-to-be-looked-for", "a-key-to-be-looked-for"


class Asked(RolloutWorker):
    """Tells what its connections see. Its constructor reads the judge's key, and fails without."""

    def groups(self) -> int:
        return len(self._replay)


class AskedRank(RankActor):
    def groups(self) -> int:
        return len(self._worker._replay)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[RunConfig]:
    with ReplayServer(tmp_path / "server") as server:
        with redis.Redis.from_url(server.url) as admin:
            admin.execute_command("ACL", "SETUSER", "someone", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        options = redis.connection.parse_url(server.url)
        yield parse_config(
            {
                "replay": {
                    "url": f"redis://{options['host']}:{options['port']}/0",
                    "username": "someone",
                    "password_env": "POOL_WORD",
                },
                "reward": {"judge": {"weight": 0.1, "url": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": "JUDGE_WORD"}},
                "actors": {"cpus_per_actor": 0},
                "learner": {"cpus_per_worker": 0},
                "ray": {"dashboard": False},
            }
        )


def test_they_arrive_and_are_written_nowhere(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    with cluster(config, "secrets"):
        monkeypatch.setenv("POOL_WORD", PASSWORD)  # after the node has begun: it lacks them, as another one would
        monkeypatch.setenv("JUDGE_WORD", KEY)
        secrets = secrets_to_ship(config, judge=True)
        rank_options = {"replay_url": config.replay.url, "replay_namespace": "pool", "rank": 0, "world": 1}
        spec = WorkerSpec(
            name="actor-0",
            config=config,
            model=tmp_path,
            replay_url=str(config.replay.url),
            replay_namespace="pool",
            priority=FreshPriority(config),
            log_file=tmp_path / "logs" / "actor-0.log",
            secrets=secrets,
        )
        actor = ray.remote(Asked).options(num_cpus=0)
        rank = ray.remote(AskedRank).options(num_cpus=0)
        log_path = tmp_path / "logs" / "learner-0.log"
        with_them = [actor.remote(spec), rank.remote(config, tmp_path, **rank_options, log_path=log_path, secrets=secrets)]
        without = actor.remote(replace(spec, secrets=Secrets()))
        assert ray.get([process.groups.remote() for process in with_them], timeout=120) == [0, 0]
        with pytest.raises(ray.exceptions.RayActorError, match="WORD"):
            ray.get(without.groups.remote(), timeout=120)
        session = Path(ray._private.worker._global_node.get_session_dir_path())
    texts = [path.read_bytes() for folder in (session, tmp_path / "logs") for path in folder.rglob("*") if path.is_file()]
    assert len(texts) > 5
    assert not any(word.encode() in text for word in (PASSWORD, KEY) for text in texts)
