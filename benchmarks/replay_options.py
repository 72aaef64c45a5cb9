"""Each option of the replay service, shown acting in the real loop: real engine, server and learner, smoke.yaml.

    .venv/bin/python benchmarks/replay_options.py [--only priority,cooldown] [--updates 8]

One short run with the baseline's settings, then one per option; prints a Markdown table with the figure that the option is
to move, and exits with 1 if one does not move as it should. The figures are means over the run's updates, or at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
CONFIG = "deploy/configs/smoke.yaml"
#: A pool in which every option has something to act on.
BASELINE = (
    "replay.update_frequency=16",
    "replay.max_ahead=64",
    "replay.max_uses=null",
    "env.train_tasks=12",
    "eval.every=1000",
)

Figure = Callable[["Run"], float]
Check = Callable[[float, float], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run left behind."""

    records: list[dict[str, Any]]
    error: str

    def mean(self, name: str) -> float:
        values = [record[name] for record in self.records if name in record]
        return sum(values) / len(values)

    def last(self, name: str) -> float:
        return float([record[name] for record in self.records if name in record][-1])

    def first(self, name: str) -> float:
        return float(next(record[name] for record in self.records if name in record))

    def highest(self, name: str) -> float:
        return float(max(record[name] for record in self.records if name in record))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An option, the figure it is to move and how: `check(baseline, changed)`; both runs also have `given`."""

    option: str
    overrides: Sequence[str]
    figure: str
    read: Figure
    check: Check
    given: Sequence[str] = ()


def mean(name: str) -> Figure:
    return lambda run: run.mean(name)


def last(name: str) -> Figure:
    return lambda run: run.last(name)


def _size(run: Run) -> float:
    return run.last("replay/bytes") / run.last("replay/trajectories")


def _failed_with(text: str) -> Figure:
    return lambda run: float(text in run.error)


def lower(share: float = 1.0) -> Check:
    return lambda before, after: after < before * share


def higher(share: float = 1.0) -> Check:
    return lambda before, after: after > before * share


def exactly(value: float) -> Check:
    return lambda before, after: abs(after - value) < 1e-9 and abs(before - value) > 1e-9


def within(limit: float) -> Check:
    return lambda before, after: after <= limit < before


def case(option: str, overrides: str, figure: str, read: Figure, check: Check, *, given: str = "") -> Case:
    return Case(option=option, overrides=overrides.split(), figure=figure, read=read, check=check, given=given.split())


CASES = (
    case("priority", "replay.priority=constant", "mean priority of what is drawn", mean("replay/priority"), exactly(1)),
    case(
        "priority_exponent",
        "replay.priority_exponent=0 replay.freshness_half_life=null",
        "mean importance weight (1: uniform draws)",
        mean("replay/is_weight"),
        exactly(1),
    ),
    case("importance_sampling", "replay.importance_sampling=false", "mean weight", mean("replay/is_weight"), exactly(1)),
    case("importance_beta", "replay.importance_beta=1", "mean weight", mean("replay/is_weight"), lower()),
    case(
        "importance_beta_final, importance_anneal",
        "replay.importance_beta_final=1 replay.importance_anneal=2",
        "mean weight",
        mean("replay/is_weight"),
        lower(),
    ),
    case("importance_base", "replay.importance_base=inclusion", "mean weight", mean("replay/is_weight"), higher()),
    case("freshness_half_life", "replay.freshness_half_life=0.25", "mean staleness", mean("replay/staleness"), lower()),
    case("fresh_fraction", "replay.fresh_fraction=1", "fresh share of a batch", mean("replay/fresh_fraction"), higher()),
    case("newest_per_task", "replay.newest_per_task=true", "groups superseded", last("replay/superseded"), higher()),
    case("cooldown", "replay.cooldown=4", "earlier uses of a drawn group", mean("replay/uses"), lower()),
    case("max_uses", "replay.max_uses=1", "earlier uses of a drawn group", mean("replay/uses"), exactly(0)),
    case(
        "max_staleness",
        "replay.max_staleness=1",
        "highest mean staleness of a batch",
        lambda run: run.highest("replay/staleness"),
        within(1),
    ),
    case(
        "warmup_steps",
        "replay.warmup_steps=128",
        "inserted at the first update",
        lambda run: run.first("replay/inserted"),
        higher(),
    ),
    case("update_frequency", "replay.update_frequency=48", "inserted at the end", last("replay/inserted"), higher(1.5)),
    case(
        "max_ahead",
        "replay.max_ahead=4",
        "inserted at the end, the actors faster than the learner",
        last("replay/inserted"),
        lower(),
        given="replay.update_frequency=4",
    ),
    case(
        "capacity",
        "replay.capacity=96",
        "trajectories in the pool at most",
        lambda run: run.highest("replay/trajectories"),
        within(96),
    ),
    case(
        "capacity_bytes",
        "replay.capacity_bytes=100000",
        "bytes in the pool at most",
        lambda run: run.highest("replay/bytes"),
        within(100_000),
    ),
    case("eviction stalest", "replay.capacity=96 replay.eviction=stalest", "groups evicted", last("replay/evicted"), higher()),
    case(
        "eviction divergent", "replay.capacity=96 replay.eviction=divergent", "groups evicted", last("replay/evicted"), higher()
    ),
    case(
        "eviction utility",
        "replay.capacity=96 replay.eviction=utility",
        "mean priority of what is drawn, over 'oldest'",
        mean("replay/priority"),
        higher(),
    ),
    case(
        "clear_every, clear_share",
        "replay.clear_every=2 replay.clear_share=0.5",
        "groups cleared",
        last("replay/cleared"),
        higher(),
    ),
    case("compress", "replay.compress=true", "bytes per trajectory", _size, lower()),
    case("half_logprobs", "replay.half_logprobs=true", "bytes per trajectory", _size, lower()),
    case(
        "max_group_bytes",
        "replay.max_group_bytes=1000",
        "run refused, naming it",
        _failed_with("max_group_bytes is 1000"),
        exactly(1),
    ),
    case(
        "deadline_s",
        "replay.deadline_s=0.05",
        "run ended, saying what it waited for",
        _failed_with("gave up after 0.05 s waiting for actors to insert trajectories"),
        exactly(1),
    ),
    case(
        "namespace, url, reconnect_s",
        "replay.url=redis://127.0.0.1:1/0 replay.reconnect_s=0.5",
        "run ended, naming the server",
        _failed_with("could not be reached for 0.5 s"),
        exactly(1),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="options, separated by commas")
    parser.add_argument("--updates", type=int, default=8)
    arguments = parser.parse_args()
    chosen = [case for case in CASES if not arguments.only or case.option.split()[0].rstrip(",") in arguments.only.split(",")]
    sys.stdout.write(f"{os.cpu_count()} cores, {CONFIG}, {arguments.updates} updates, {' '.join(BASELINE)}\n\n")
    sys.stdout.write("| option | set to | figure | baseline | with it |\n|---|---|---|---|---|\n")
    baselines: dict[tuple[str, ...], Run] = {}
    idle = []
    for each in chosen:
        given = tuple(each.given)
        baselines[given] = baselines.get(given) or train(given, arguments.updates)
        before, after = each.read(baselines[given]), each.read(train([*given, *each.overrides], arguments.updates))
        moved = each.check(before, after)
        idle += [] if moved else [each.option]
        settings = ", ".join(override.removeprefix("replay.") for override in each.overrides)
        settings += f" (given {', '.join(each.given)})" if each.given else ""
        sys.stdout.write(
            f"| {each.option} | {settings} | {each.figure} | {before:.4g} | {after:.4g}{'' if moved else ' (!)'} |\n"
        )
        sys.stdout.flush()
    if idle:
        sys.exit(f"no effect: {', '.join(idle)}")


def train(overrides: Sequence[str], updates: int) -> Run:
    """One run; it may fail, which is for the case to judge."""
    name = "replay-options"
    command = [sys.executable, "-m", "deploy", "train", "--config", CONFIG, f"run.name={name}", f"run.updates={updates}"]
    subprocess.run([*command, *BASELINE, *overrides], cwd=PROJECT, check=False, capture_output=True)
    folder = PROJECT / "runs" / name
    summary = json.loads((folder / "summary.json").read_text())
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    records = [record for line in lines if "replay/groups" in (record := json.loads(line))]
    return Run(records=records, error=summary["error"] or "")


if __name__ == "__main__":
    main()
