"""Small models, groups and rows for the learner's tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from cacherl.trajectory import NO_VERSION, Status, Trajectory, TrajectoryGroup, Turn
from learner.batch import Row
from support import free_port

VOCABULARY = 128


def tiny_model(directory: Path, *, seed: int = 0, tied: bool = True) -> Path:
    """A Qwen3 of 2 layers, 64 wide, saved as a Hugging Face folder."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=tied,
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def trajectory(
    rng: np.random.Generator,
    *,
    name: str = "t",
    task: str = "task",
    turns: Sequence[tuple[int, int]] = ((6, 3), (5, 0)),
    reward: float = 0.0,
    version: int = 0,
    temperature: float = 1.0,
    prompt: int = 5,
    logprob: float = -4.0,
) -> Trajectory:
    """One of `prompt` tokens and, per turn, (sampled, observed) tokens, with log-probabilities near `logprob`."""
    spans, position = [], prompt
    for sampled, observed in turns:
        middle = position + sampled
        spans.append(Turn(completion=(position, middle), observation=(middle, middle + observed), text=""))
        position = middle + observed
    mask = np.zeros(position, dtype=np.bool_)
    for turn in spans:
        mask[slice(*turn.completion)] = True
    noise = logprob + 0.5 * rng.standard_normal(position)
    return Trajectory(
        trajectory_id=name,
        task_id=task,
        family="test",
        level=1,
        split="train",
        token_ids=rng.integers(0, VOCABULARY, position, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, np.minimum(noise, -0.01), 0).astype(np.float32),
        policy_versions=np.where(mask, version, NO_VERSION).astype(np.int32),
        temperature=temperature,
        turns=tuple(spans),
        rewards={"final": reward},
        outcome=float(reward > 0.5),
        status=Status(kind="terminated"),
        task_seed=0,
        rollout_seed=0,
    )


def group(rng: np.random.Generator, name: str, *, size: int = 4, version: int = 0) -> TrajectoryGroup:
    """Siblings of different lengths, half of them successful."""
    members = tuple(
        trajectory(
            rng,
            name=f"{name}-{index}",
            task=name,
            turns=[(int(rng.integers(2, 9)), int(rng.integers(0, 5))) for _ in range(int(rng.integers(1, 4)))],
            reward=float(index % 2) - 0.02 * index,
            version=version,
        )
        for index in range(size)
    )
    return TrajectoryGroup(group_id=name, task_id=name, trajectories=members)


def row(rng: np.random.Generator, length: int, trained: int, *, is_weight: float = 1.0, temperature: float = 1.0) -> Row:
    """A row of `length` tokens, `trained` of them trained, with an advantage per row."""
    positions = np.sort(rng.choice(np.arange(1, length), trained, replace=False))
    return Row(
        token_ids=rng.integers(0, VOCABULARY, length, dtype=np.int32),
        positions=positions,
        rollout_logprobs=(-4 + 0.5 * rng.standard_normal(trained)).astype(np.float32),
        advantages=np.full(trained, rng.standard_normal(), dtype=np.float32),
        policy_versions=np.zeros(trained, dtype=np.int32),
        is_weight=is_weight,
        temperature=temperature,
    )


def results_of(child: Callable[..., None], arguments: Sequence[Any], count: int, *, timeout_s: float = 180) -> list[Any]:
    """What `child(port, *arguments, results)` puts on its queue, in a process of its own, because a process group is one
    process's own; fails as soon as the process has."""
    context = get_context("spawn")
    results = context.Queue()
    process = context.Process(target=child, args=(free_port(), *arguments, results))
    process.start()
    found: list[Any] = []
    deadline = time.monotonic() + timeout_s
    try:
        while len(found) < count:
            alive = process.is_alive()
            try:
                found.append(results.get(timeout=1))
            except Empty:
                assert alive, f"the process ended with {process.exitcode} after {len(found)} of {count} results"
                assert time.monotonic() < deadline, f"{len(found)} of {count} results after {timeout_s} s"
        return found
    finally:
        process.kill()
        process.join()


def results_of_ranks(
    child: Callable[..., None], world: int, arguments: Sequence[Any], count: int = 1, *, timeout_s: float
) -> list[Any]:
    """What `child(rank, world, port, *arguments, results)` puts on its queue in `world` processes, which must all end well."""
    context, port = get_context("spawn"), free_port()
    results = context.Queue()
    children = [context.Process(target=child, args=(rank, world, port, *arguments, results)) for rank in range(world)]
    for process in children:
        process.start()
    try:
        found = [results.get(timeout=timeout_s) for _ in range(count)]
        for process in children:
            process.join(60)
        assert [process.exitcode for process in children] == [0] * world
    finally:
        for process in children:
            process.kill()
    return found
