"""The learner through its real path: Ray actors, DeepSpeed over gloo, a replay server, a tiny Qwen3."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import redis
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from cacherl.codec import encode_group
from cacherl.config import RunConfig, parse_config
from cacherl.durable import WrittenFile
from cacherl.errors import LearnerError, NotFiniteError
from cacherl.policy import WeightManifest
from cacherl.trajectory import TrajectoryGroup
from learner.checkpoint import take_reports
from learner.group import LearnerGroup
from learner_data import group, tiny_model, trajectory
from replay_service.archive import read_archive
from replay_service.keys import Keys
from replay_service.server import ReplayServer
from replay_service.store import Replay

GROUPS, SIZE = 6, 4
WEIGHTS = "policy/model.safetensors"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayServer]:
    with ReplayServer(tmp_path_factory.mktemp("replay")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def configure(**learner: Any) -> RunConfig:
    return parse_config(
        {
            "rollout": {"group_size": SIZE},
            "model": {"max_length": 64},
            "replay": {"warmup_steps": 0, "update_frequency": 0, "deadline_s": 20},
            "kl": {"coef": 0.1},
            "warm_start": {"updates": 20, "batch_size": 4, "lr": 1e-2},
            "learner": {"batch_size": GROUPS * SIZE, "micro_batch_tokens": 100, "lr": 1e-3, "cpus_per_worker": 0.5, **learner},
        }
    )


class Learner:
    """A started group with its own replay pool."""

    def __init__(self, config: RunConfig, model: Path, url: str, name: str, logs: Path) -> None:
        self.url, self.name = url, name
        self.replay = Replay(url, name, config.replay)
        self.replay.check()
        self.group = LearnerGroup(
            config, model=model, replay_url=url, replay_namespace=name, log_dir=logs / name, ray_namespace=name
        )
        self.logs = logs / name

    def push(self, count: int = GROUPS) -> None:
        rng = np.random.default_rng(0)
        for index in range(count):
            self.replay.push(group(rng, f"g{index}", size=SIZE), priority=1.0)

    def lose(self, *group_ids: str) -> None:
        """Delete payloads behind the index's back, as the expiry of an evicted group's does."""
        with redis.Redis.from_url(self.url) as client:
            client.unlink(*(Keys(self.name).payload(group_id) for group_id in group_ids))

    async def weights(self, version: int) -> dict[str, torch.Tensor]:
        manifest, reference = await self.group.publish(version)
        return unpack(manifest, ray.get(reference))


def unpack(manifest: WeightManifest, buffer: np.ndarray) -> dict[str, torch.Tensor]:
    assert manifest.checksum == f"{zlib.crc32(buffer.data):08x}"
    flat = torch.from_numpy(buffer.copy())
    return {
        spec.name: flat[spec.offset : spec.offset + spec.nbytes].view(getattr(torch, spec.dtype)).reshape(spec.shape)
        for spec in manifest.tensors
    }


@pytest.fixture
async def start(server: ReplayServer, model: Path, tmp_path: Path) -> AsyncIterator[Any]:
    started: list[Learner] = []

    async def begin(name: str, **learner: Any) -> Learner:
        made = Learner(configure(**learner), model, server.url, name, tmp_path)
        started.append(made)
        await made.group.start()
        return made

    yield begin
    for made in started:
        await made.group.close()
        made.replay.close()


async def test_one_rank_and_two_ranks_make_the_same_update(start: Any, model: Path) -> None:
    one = await start("one", zero_stage=0)
    one.push()
    first = await one.group.update("b1")
    alone = await one.weights(1)
    await one.group.close()

    two = await start("two", workers=2, zero_stage=3)
    two.push()
    second = await two.group.update("b1")
    together = await two.weights(1)

    ids = {f"g{index}" for index in range(GROUPS)}
    shards = [set(shard) for shard in second.group_ids]
    assert set(first.group_ids[0]) == ids
    assert shards[0] | shards[1] == ids
    assert not shards[0] & shards[1]
    assert min(map(len, shards)) >= 2
    initial = load_file(model / "model.safetensors")
    assert set(alone) == set(together) == set(initial)
    moved = max((alone[name] - initial[name]).abs().max().item() for name in initial)
    assert moved == pytest.approx(1e-3, rel=0.1)  # Adam's first step is lr
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, atol=2e-5, rtol=0)
    for name, value in first.metrics.items():
        if name not in ("time/update", "learner/useful_tokens"):
            assert second.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert first.version == second.version == 1
    assert first.metrics["learner/kl"] == pytest.approx(0, abs=1e-9)  # the reference is the start


async def test_update_acknowledges_lower_priorities_and_staleness(start: Any) -> None:
    learner = await start("ack")
    learner.push()
    stats = await learner.group.update("b1")
    again = learner.replay.sample("b2", GROUPS)
    assert stats.metrics["replay/fresh_fraction"] == 1.0
    assert stats.metrics["replay/uses"] == 0.0
    assert all(entry.uses == 1 for entry in again.entries)
    # Tokens drawn at random with log-probability -4 are much rarer under the model, so their groups fade.
    assert all(0 < entry.priority < 1 for entry in again.entries)
    learner.replay.ack("b2", priorities={})
    second = await learner.group.update("b3")
    assert second.metrics["replay/staleness"] == 1.0
    assert second.metrics["replay/fresh_fraction"] == 0.0
    assert "learner/mismatch_kl" in stats.metrics
    assert "learner/mismatch_kl" not in second.metrics  # no token of the learner's own version


async def test_warm_start_then_export_and_token_logprobs(start: Any, tmp_path: Path) -> None:
    learner = await start("warm")
    rng = np.random.default_rng(1)
    demonstrations = [trajectory(rng, name=f"d{index}", temperature=0.7) for index in range(4)]
    reports: list[tuple[int, float]] = []
    last = await learner.group.warm_start(demonstrations, lambda done, loss: reports.append((done, loss)))
    assert [done for done, _ in reports] == [10, 20]
    assert last == reports[-1][1] < 0.8 * reports[0][1]

    scores = await learner.group.token_logprobs(demonstrations)
    await learner.group.save(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").double().eval()
    for demonstration, score in zip(demonstrations, scores, strict=True):
        tokens = torch.from_numpy(demonstration.token_ids.astype(np.int64))
        with torch.no_grad():
            logits = loaded(tokens[None]).logits[0].double() / 0.7
        expected = logits.log_softmax(-1)[:-1].gather(-1, tokens[1:, None])[:, 0][demonstration.loss_mask[1:]]
        np.testing.assert_allclose(score, expected.numpy(), atol=1e-4)
    published = await learner.weights(0)
    torch.testing.assert_close(published, load_file(tmp_path / "saved" / "model.safetensors"), rtol=0, atol=0)


async def test_a_batch_shrinks_with_evicted_groups_and_an_empty_one_is_an_error(start: Any) -> None:
    learner = await start("evicted")
    learner.push()
    learner.replay.sample("b1", GROUPS)
    learner.lose("g0", "g1")
    stats = await learner.group.update("b1")
    assert stats.missing == 2
    assert set(stats.group_ids[0]) == {"g2", "g3", "g4", "g5"}
    plan = learner.replay.sample("b2", 4)
    learner.lose(*(entry.group_id for entry in plan.entries))
    with pytest.raises(LearnerError, match="nothing to train on"):
        await learner.group.update("b2")


async def test_a_loss_that_is_no_number_ends_every_rank_with_its_batch_saved(start: Any) -> None:
    two = await start("diverging", workers=2, zero_stage=1, lr=1e30)
    two.push()
    await two.group.update("b1")  # the last step that there is a number for
    with pytest.raises(
        NotFiniteError, match=r"update 2: the (loss|gradient) is not finite; .* its batch is in .*not-finite-2-rank-\d\.crlp"
    ):
        await two.group.update("b2")
    await two.group.close()  # which lets the other rank finish its file
    saved = [dict(_by_id(two.logs / f"not-finite-2-rank-{rank}.crlp")) for rank in range(2)]
    assert saved[0].keys() | saved[1].keys() == {f"g{index}" for index in range(GROUPS)}
    assert not saved[0].keys() & saved[1].keys()
    (held,) = two.replay.fetch(["g3"])
    assert held is not None
    (kept,) = [shard["g3"] for shard in saved if "g3" in shard]
    assert encode_group(kept) == encode_group(held)


def _by_id(path: Path) -> Iterator[tuple[str, TrajectoryGroup]]:
    return ((one.group_id, one) for _, one in read_archive(path))


async def test_a_rank_that_dies_is_named_and_close_leaves_no_process(start: Any) -> None:
    learner = await start("dies")
    ranks = rank_processes()
    assert len(ranks) == 1
    ranks[0].kill()
    with pytest.raises(LearnerError, match="learner rank 0 died during publish"):
        await learner.group.publish(0)
    other = await start("closes")
    assert len(rank_processes()) == 1
    await other.group.close()
    await learner.group.close()
    psutil.wait_procs(rank_processes(), timeout=10)
    assert rank_processes() == []


def written(folder: Path) -> list[WrittenFile]:
    """What the one rank's snapshot wrote, once it has."""
    deadline = time.monotonic() + 20
    while (files := take_reports(folder, 1)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return files


def rank_processes() -> list[psutil.Process]:
    """Processes of learner ranks below this one."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.is_running() and "RankActor" in " ".join(child.cmdline())]


async def test_a_group_takes_the_place_of_one_that_was_closed_and_learns_beside_its_base(
    server: ReplayServer, model: Path, tmp_path: Path
) -> None:
    """As after a warm start with LoRA: the merged weights are the base, and the reference, of a group of the same name."""
    config = configure(lora={"rank": 4}, lr=1e-2)
    rng = np.random.default_rng(1)
    first = Learner(config, model, server.url, "place", tmp_path)
    await first.group.start()
    await first.group.warm_start([trajectory(rng, name=f"d{index}") for index in range(4)])
    await first.group.save(tmp_path / "warm")
    await first.group.close()
    first.replay.close()
    second = Learner(config, tmp_path / "warm", server.url, "place", tmp_path)
    try:
        await second.group.start()
        second.push()
        stats = await second.group.update("b1")
        assert stats.metrics["learner/kl"] == pytest.approx(0, abs=1e-9)
        assert (await second.group.update("b2")).metrics["learner/kl"] > 1e-6
        await second.group.snapshot(tmp_path)
        files = await asyncio.to_thread(written, tmp_path)
        assert {file.name for file in files} == {"learner-0.pt", "policy/config.json", "policy/generation_config.json", WEIGHTS}
        published, policy = await second.weights(2), load_file(tmp_path / WEIGHTS)
        torch.testing.assert_close(published, policy, rtol=0, atol=0)
        base, initial = load_file(tmp_path / "warm" / "model.safetensors"), load_file(model / "model.safetensors")
        assert all(torch.equal(base[name], initial[name]) == ("_proj" not in name) for name in initial)
        assert all(torch.equal(policy[name], base[name]) == ("_proj" not in name) for name in base)
    finally:
        await second.group.close()
        second.replay.close()
