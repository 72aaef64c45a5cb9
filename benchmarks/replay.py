"""What the replay service costs, against the raw server on the same bytes and against in-process buffers.

    python benchmarks/replay.py --sizes 10000 100000 --json replay.json

Trajectories are synthetic: lognormal lengths, log-probabilities and versions on half of the tokens, as in a tool-calling
episode. Every figure of the service is taken next to that of the raw server, in turn, so that a noisy machine disturbs both.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import redis

from cacherl.codec import decode_group, encode_group
from cacherl.replay_settings import ReplaySettings
from cacherl.trajectory import NO_VERSION, Status, Trajectory, TrajectoryGroup, Turn
from replay_service.binary import find_bundled_server, find_server
from replay_service.plan import SamplePlan
from replay_service.server import ReplayServer
from replay_service.store import Replay

GROUP = 8
BATCHES = (32, 256, 1024)
DISTINCT = 48
TURNS = 4
#: Groups in one round trip, where several go together.
PIPELINE = 8


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], help="pool sizes in trajectories")
    parser.add_argument("--tokens", type=int, default=3400, help="mean tokens of a trajectory")
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of each batch size")
    parser.add_argument("--server", choices=["system", "valkey"], default="system")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    binary = find_server() if options.server == "system" else find_bundled_server()
    groups = [synthetic_group(index, options.tokens) for index in range(DISTINCT)]
    rows: list[dict[str, object]] = [codec_row(groups)]
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder, ReplayServer(Path(folder), binary=binary) as server:
            rows += measure_pool(server, groups, size, options.rounds)
    rows += in_process_rows(groups, max(options.sizes))
    for row in rows:
        sys.stdout.write("  ".join(f"{key} {value}" for key, value in row.items()) + "\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def synthetic_group(seed: int, mean_tokens: int) -> TrajectoryGroup:
    """A group whose members alternate sampled and observed spans; token ids fall off as words do."""
    rng = np.random.default_rng(seed)
    members = tuple(_member(rng, seed, index, mean_tokens) for index in range(GROUP))
    return TrajectoryGroup(group_id=f"distinct-{seed}", task_id=f"task-{seed}", trajectories=members)


def _member(rng: np.random.Generator, seed: int, index: int, mean_tokens: int) -> Trajectory:
    span = max(int(rng.lognormal(np.log(mean_tokens) - 0.125, 0.5)) // (2 * TURNS + 1), 2)
    length = span * (2 * TURNS + 1)
    starts = [span + 2 * span * turn for turn in range(TURNS)]
    mask = np.zeros(length, dtype=np.bool_)
    for start in starts:
        mask[start : start + span] = True
    turns = tuple(
        Turn(completion=(at, at + span), observation=(at + span, at + 2 * span), text="call " * span, rewards={"step": -0.02})
        for at in starts
    )
    return Trajectory(
        trajectory_id=f"{seed}-{index}",
        task_id=f"task-{seed}",
        family="synthetic",
        level=1,
        split="train",
        token_ids=np.minimum(rng.zipf(1.2, length), 150_000).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -rng.exponential(0.5, length), 0).astype(np.float32),
        policy_versions=np.where(mask, seed % 7, NO_VERSION).astype(np.int32),
        temperature=1.0,
        turns=turns,
        rewards={"final": float(index % 2)},
        outcome=float(index % 2),
        status=Status(kind="terminated"),
        task_seed=seed,
        rollout_seed=index,
    )


def codec_row(groups: list[TrajectoryGroup]) -> dict[str, object]:
    """Time and size of one trajectory in the default codec."""
    encode = seconds(lambda: [encode_group(group) for group in groups])
    payloads = [encode_group(group) for group in groups]
    decode = seconds(lambda: [decode_group(payload) for payload in payloads])
    count = GROUP * len(groups)
    tokens = sum(group.num_tokens for group in groups) / count
    size = sum(map(len, payloads)) / count
    return {
        "what": "codec",
        "tokens": round(tokens),
        "KB": round(size / 1000, 1),
        "encode_us": round(1e6 * encode / count, 1),
        "decode_us": round(1e6 * decode / count, 1),
    }


def measure_pool(server: ReplayServer, groups: list[TrajectoryGroup], size: int, rounds: int) -> Iterator[dict[str, object]]:
    """Push to `size` trajectories, then draw batches of each size."""
    rules = ReplaySettings(
        capacity=2 * size, max_ahead=size, warmup_steps=0, update_frequency=0, max_uses=None, max_staleness=None
    )
    with Replay(server.url, "bench", rules, seed=0) as pool, redis.Redis.from_url(server.url) as raw:
        pool.check()
        yield {"pool": size, **push_row(pool, raw, groups, size)}
        for trajectories in BATCHES:
            yield {"pool": size, **batch_row(pool, raw, trajectories, rounds)}


def push_row(pool: Replay, raw: redis.Redis, groups: list[TrajectoryGroup], size: int) -> dict[str, object]:
    """Fill the pool; half of the time, take turns with a bare pipelined SET of as many groups, encoding included."""
    before = raw.info("memory")["used_memory"]
    numbers = itertools.count()
    rng = np.random.default_rng(0)
    together: list[float] = []
    ours: list[float] = []
    bare: list[float] = []
    chunk = len(groups)
    steps = max(size // GROUP // chunk, 16)
    for step in range(steps):
        named = [dataclasses.replace(group, group_id=f"g{next(numbers)}") for group in groups]
        priorities = (rng.pareto(1.1, chunk) + 0.01).tolist()
        way, times = (push_together, together) if step % 2 else (push_all, ours)
        taken = seconds(lambda named=named, priorities=priorities, way=way: way(pool, named, priorities)) / chunk
        if step % 8 >= 4:
            times.append(taken)
            bare.append(seconds(lambda named=named: set_all(raw, named)) / chunk)
            raw.unlink(*(f"bare-{group.group_id}" for group in named))
    stats = pool.stats()
    used = raw.info("memory")["used_memory"] - before
    return {
        "what": "push",
        "trajectories_per_s": round(GROUP / statistics.median(ours)),
        "bare_set_per_s": round(GROUP / statistics.median(bare)),
        "ratio": round(statistics.median(ours) / statistics.median(bare), 2),
        "many_per_s": round(GROUP / statistics.median(together)),
        "many_ratio": round(statistics.median(together) / statistics.median(bare), 2),
        "overhead_bytes_per_trajectory": round((used - stats.bytes) / stats.trajectories),
        "overhead_share": round(used / stats.bytes - 1, 3),
    }


def push_all(pool: Replay, groups: list[TrajectoryGroup], priorities: list[float]) -> None:
    """Encode and push, one round trip a group."""
    for group, priority in zip(groups, priorities, strict=True):
        pool.push(group, priority=priority)


def push_together(pool: Replay, groups: list[TrajectoryGroup], priorities: list[float]) -> None:
    """Encode and push, as many groups with one round trip as the bare pipeline."""
    for start in range(0, len(groups), PIPELINE):
        part = slice(start, start + PIPELINE)
        pool.try_push_many(groups[part], priorities=priorities[part])


def set_all(raw: redis.Redis, groups: list[TrajectoryGroup]) -> None:
    """Encode and SET, several groups in one pipeline."""
    for start in range(0, len(groups), PIPELINE):
        with raw.pipeline(transaction=False) as pipe:
            for group in groups[start : start + PIPELINE]:
                pipe.set(f"bare-{group.group_id}", encode_group(group))
            pipe.execute()


def batch_row(pool: Replay, raw: redis.Redis, trajectories: int, rounds: int) -> dict[str, object]:
    """Sample, fetch with decoding, acknowledge; and the bare MGET with decoding of the same keys."""
    parts: dict[str, list[float]] = {"sample": [], "fetch_decode": [], "ack": [], "bare": []}
    for number in range(rounds):
        batch = f"{trajectories}-{number}-{time.time_ns()}"
        start = time.perf_counter()
        plan = pool.sample(batch, trajectories // GROUP)
        sampled = time.perf_counter()
        names = [entry.group_id for entry in plan.entries]
        if number % 2:
            parts["bare"].append(seconds(lambda names=names: read_bare(raw, names)))
        begin = time.perf_counter()
        pool.fetch(names)
        fetched = time.perf_counter()
        acknowledge(pool, batch, plan)
        end = time.perf_counter()
        if not number % 2:
            parts["bare"].append(seconds(lambda names=names: read_bare(raw, names)))
        for name, value in (("sample", sampled - start), ("fetch_decode", fetched - begin), ("ack", end - fetched)):
            parts[name].append(value)
    middle = {f"{name}_ms": round(1000 * statistics.median(values), 2) for name, values in parts.items()}
    whole = sum(statistics.median(parts[name]) for name in ("sample", "fetch_decode", "ack"))
    acks = trajectories / GROUP / statistics.median(parts["ack"])
    return {
        "what": f"batch {trajectories}",
        **middle,
        "sample_p95_ms": round(1000 * float(np.quantile(parts["sample"], 0.95)), 2),
        "group_acks_per_s": round(acks),
        "ratio": round(whole / statistics.median(parts["bare"]), 2),
    }


def acknowledge(pool: Replay, batch: str, plan: SamplePlan) -> None:
    """New priorities for all groups."""
    pool.ack(batch, priorities={entry.group_id: entry.priority * 0.9 for entry in plan.entries})


def read_bare(raw: redis.Redis, names: list[str]) -> None:
    """One MGET, then decoding."""
    for payload in raw.mget([f"{{bench}}:g:{name}" for name in names]):
        decode_group(payload)


def in_process_rows(groups: list[TrajectoryGroup], size: int) -> Iterator[dict[str, object]]:
    """Index work of buffers inside the process: no durability, no sharing, no bytes moved."""
    yield in_process_row("numpy cumulative sum", numpy_buffer(size // GROUP), size)
    for name, make in (("cpprb", cpprb_buffer), ("torchrl", torchrl_buffer)):
        if importlib.util.find_spec(name):
            try:
                yield in_process_row(name, make(size // GROUP), size)
            except RuntimeError as error:  # TorchRL's sum tree is an extension built for one version of torch
                yield {"what": name, "unusable": str(error)}


def in_process_row(name: str, draw: Callable[[int], None], size: int) -> dict[str, object]:
    """Draw and update priorities, per batch size."""
    times = {
        f"sample_update_{batch}_ms": round(1000 * min(seconds(lambda batch=batch: draw(batch // GROUP)) for _ in range(15)), 3)
        for batch in BATCHES
    }
    return {"pool": size, "what": name, **times}


def numpy_buffer(groups: int) -> Callable[[int], None]:
    """Exact draws with replacement by a cumulative sum over all weights."""
    rng = np.random.default_rng(0)
    weights = (rng.pareto(1.1, groups) + 0.01) ** 0.6

    def draw(count: int) -> None:
        sums = np.cumsum(weights)
        chosen = np.searchsorted(sums, rng.random(count) * sums[-1])
        weights[chosen] *= 0.9**0.6

    return draw


def cpprb_buffer(groups: int) -> Callable[[int], None]:
    """cpprb's prioritized buffer over group numbers."""
    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(groups, {"group": {"dtype": np.int64}}, alpha=0.6)
    buffer.add(group=np.arange(groups), priorities=np.random.default_rng(0).pareto(1.1, groups) + 0.01)

    def draw(count: int) -> None:
        drawn = buffer.sample(count, beta=0.4)
        buffer.update_priorities(drawn["indexes"], drawn["weights"])

    return draw


def torchrl_buffer(groups: int) -> Callable[[int], None]:
    """TorchRL's prioritized sampler over group numbers."""
    import torch
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    buffer = ReplayBuffer(storage=LazyTensorStorage(groups), sampler=PrioritizedSampler(groups, alpha=0.6, beta=0.4))
    places = buffer.extend(torch.arange(groups))
    buffer.update_priority(places, torch.from_numpy(np.random.default_rng(0).pareto(1.1, groups) + 0.01))

    def draw(count: int) -> None:
        _, info = buffer.sample(count, return_info=True)
        buffer.update_priority(info["index"], torch.ones(count))

    return draw


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
