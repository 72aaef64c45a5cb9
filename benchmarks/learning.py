"""Does it learn, and is it the reinforcement learning? The demo over several seeds, beside the same run with learning rate 0.

    .venv/bin/python benchmarks/learning.py --seeds 0 1 2

Prints a Markdown table: held-out greedy success after the warm start and at the end, per level at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
HEADER = "| arm | seed | start | end | end by level | updates | episodes | training | whole run |\n"
ARMS = {"GRPO": [], "learning rate 0": ["learner.lr=0"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--config", default="deploy/configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", help="further overrides for every run")
    arguments = parser.parse_args()
    sys.stdout.write(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, {arguments.config}\n\n")
    sys.stdout.write(HEADER + "|" + "---|" * HEADER.count(" | ") + "---|\n")
    for arm, overrides in ARMS.items():
        for seed in arguments.seeds:
            name = f"learning-{'-'.join(arm.lower().split())}-{seed}"
            run = [f"run.name={name}", f"run.seed={seed}", "run.if_exists=replace", *overrides, *arguments.overrides]
            sys.stdout.write(row(arm, seed, train(arguments.config, run, name)) + "\n")
            sys.stdout.flush()


def train(config: str, overrides: list[str], name: str) -> Path:
    """Run one training run; returns its folder."""
    command = [sys.executable, "-m", "deploy", "train", "--config", config, *overrides]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    return PROJECT / "runs" / name


def row(arm: str, seed: int, run_dir: Path) -> str:
    """One line of the table."""
    summary = json.loads((run_dir / "summary.json").read_text())
    records: list[dict[str, Any]] = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "eval/success" in record][-1]
    levels = " / ".join(f"{value:.2f}" for key, value in sorted(last.items()) if key.startswith("eval/success/"))
    return (
        f"| {arm} | {seed} | {summary['held_out_start']:.3f} | {summary['held_out_end']:.3f} | {levels} | {summary['updates']} "
        f"| {summary['episodes']:,} | {summary['phases'].get('training', 0) + summary['phases'].get('evaluation', 0):.0f} s "
        f"| {summary['elapsed_s']:.0f} s |"
    )


if __name__ == "__main__":
    main()
