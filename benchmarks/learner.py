"""What an update costs, against a bare DeepSpeed loop on the same model and tokens.

    python benchmarks/learner.py --vocabulary 8192 --json learner.json

Each variant is a process of its own, for its peak memory; their updates are made in turn, so that a noisy machine disturbs all
alike. 'bare' is what one would write by hand: a Hugging Face model, its whole logits, log_softmax, gather, backward. It gets
the learner's own micro-batches; 'bare, padded' cuts the batch as it comes and pads to the longest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

# This file's folder, which is where Python looks first, would hide the package of the same name.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

MAX_LENGTH = 512
MICRO_BATCH_TOKENS = 4096
ROWS = 48
LR = 1e-4

Update = Callable[[], None]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="updates of each variant, after one that does not count")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder), options)
        results = measure(model, options.vocabulary, options.rounds)
    for row in results:
        sys.stdout.write("  ".join(f"{key} {value}" for key, value in row.items()) + "\n")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


def build_model(folder: Path, options: argparse.Namespace) -> Path:
    """A Qwen3 of random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=options.hidden // 4,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_LENGTH,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_rows(vocabulary: int) -> list[Any]:
    """Rows of lognormal lengths, two fifths of whose tokens are trained."""
    from learner.batch import Row

    rng = np.random.default_rng(0)
    rows = []
    for length in np.clip(rng.lognormal(5.0, 0.6, ROWS), 16, MAX_LENGTH).astype(int):
        trained = max(1, int(0.4 * length))
        positions = np.sort(rng.choice(np.arange(1, length), trained, replace=False))
        rows.append(
            Row(
                token_ids=rng.integers(0, vocabulary, length, dtype=np.int32),
                positions=positions,
                rollout_logprobs=np.full(trained, -np.log(vocabulary), dtype=np.float32),
                advantages=np.full(trained, rng.standard_normal(), dtype=np.float32),
                policy_versions=np.zeros(trained, dtype=np.int32),
            )
        )
    return rows


def measure(model: Path, vocabulary: int, rounds: int) -> list[dict[str, object]]:
    """One row per variant, medians over `rounds` updates."""
    context = get_context("spawn")
    pipes, children = {}, []
    for name in VARIANTS:
        pipes[name], far = context.Pipe()
        children.append(context.Process(target=serve, args=(name, model, vocabulary, far)))
        children[-1].start()
    tokens = sum(len(row) for row in make_rows(vocabulary))
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(rounds + 1):
        for name, pipe in pipes.items():
            pipe.send("update")
            seconds = pipe.recv()
            if number:
                times[name].append(seconds)
    rows: list[dict[str, object]] = []
    for name, pipe in pipes.items():
        pipe.send("stop")
        peak = pipe.recv()
        speed = tokens / statistics.median(times[name])
        ratio = statistics.median(bare / own for bare, own in zip(times["bare"], times[name], strict=True))
        rows.append({"variant": name, "tokens/s": round(speed), "over bare": round(ratio, 2), "peak MiB": round(peak)})
    for child in children:
        child.join()
    return rows


def serve(name: str, model: Path, vocabulary: int, pipe: Any) -> None:
    """Child process: make an update whenever asked; at the end the most memory that the updates added, in MiB."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    update = VARIANTS[name](model, make_rows(vocabulary))
    before = resident_mib()
    while pipe.recv() == "update":
        begun = time.perf_counter()
        update()
        pipe.send(time.perf_counter() - begun)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)


def resident_mib() -> float:
    """Memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def of_learner(model: Path, rows: list[Any], **settings: Any) -> Update:
    """The learner's own update."""
    import torch

    from cacherl.config import parse_config
    from learner.engine import PolicyEngine, Rendezvous, join
    from learner.trainer import PolicyTrainer

    learner = {"micro_batch_tokens": MICRO_BATCH_TOKENS, "lr": LR, **settings}
    config = parse_config({"model": {"max_length": MAX_LENGTH}, "learner": learner})
    device = torch.device("cpu")
    join(Rendezvous(port=free_port()), device)
    engine = PolicyEngine(model, config.learner, dtype=torch.float32, lr=LR, device=device, world=1)
    trainer = PolicyTrainer(engine, config, None)
    return lambda: trainer.train(rows, version=0) and None


def bare(model: Path, rows: list[Any], *, padded: bool = False) -> Update:
    """DeepSpeed and transformers as they come."""
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM

    from learner.batch import micro_batches
    from learner.engine import Rendezvous, join

    join(Rendezvous(port=free_port()), torch.device("cpu"))
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = {"train_micro_batch_size_per_gpu": 1, "steps_per_print": None, "managed_gradient_accumulation": False}
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LR, fused=True)
    engine, *_ = deepspeed.initialize(model=policy, optimizer=optimizer, config=settings, dist_init_required=False)
    longest, total = max(map(len, rows)), sum(len(row.positions) for row in rows)
    at_once = MICRO_BATCH_TOKENS // longest
    parts = [rows[start : start + at_once] for start in range(0, len(rows), at_once)] if padded else [rows]
    batches = [batch for part in parts for batch in micro_batches(part, longest * at_once if padded else MICRO_BATCH_TOKENS)]

    def update() -> None:
        for batch in batches:
            width = longest - batch.token_ids.shape[1] if padded else 0
            ids = torch.nn.functional.pad(batch.token_ids, (0, width))
            rows_of, columns = batch.predictors // batch.token_ids.shape[1], batch.predictors % batch.token_ids.shape[1]
            logprobs = engine(input_ids=ids).logits.float().log_softmax(-1)[rows_of, columns, batch.targets]
            ratio = torch.exp(logprobs - batch.rollout_logprobs)
            clipped = ratio.clamp(0.8, 1.28) * batch.advantages
            engine.backward(-torch.minimum(ratio * batch.advantages, clipped).sum() / total)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        engine.step()

    return update


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


VARIANTS: dict[str, Callable[[Path, list[Any]], Update]] = {
    "bare": bare,
    "bare, padded": lambda model, rows: bare(model, rows, padded=True),
    "learner": of_learner,
    "learner, packed": lambda model, rows: of_learner(model, rows, packing=True),
    "learner, recomputed": lambda model, rows: of_learner(model, rows, activation_checkpointing=True),
}


if __name__ == "__main__":
    main()
