"""Learning curves: the arms of a comparison over several seeds, each a run of its own.

    .venv/bin/python benchmarks/learning.py learning --seeds 0 1 2

A comparison is a file of benchmarks/comparisons/: a config, overrides for all arms, and further ones for each arm. Prints a
Markdown table: held-out greedy success after the warm start and at the end, per level at the end, and the cost; with
`at_tool_calls` also the success when that many tool calls had been made, by which arms with unequal updates are compared.
An arm may go on from another one's run: from its model, with the successes of its pool to imitate first.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, Field, model_validator

from deploy.run_record import SUMMARY_FILE, read_run

PROJECT = Path(__file__).resolve().parent.parent
COMPARISONS = PROJECT / "benchmarks" / "comparisons"
FAILED = "failed with"
COSTS = ("turns at last", "alarms", "updates", "episodes", "tool calls", "training", "whole run")


class Comparison(BaseModel):
    """Arms to compare.

    Attributes:
        config: of every run, relative to the project.
        overrides: of every run, before those of its arm.
        at_tool_calls: numbers of tool calls at which the arms are compared besides at their ends.
        arms: name -> overrides.
        after: arm -> an arm before it; what begins is that one's final model, and its pool is `warm_start.path`.
    """

    model_config = ConfigDict(extra="forbid")

    config: str
    overrides: tuple[str, ...] = ()
    at_tool_calls: tuple[int, ...] = ()
    arms: dict[str, tuple[str, ...]] = Field(min_length=1)
    after: dict[str, str] = {}

    @model_validator(mode="after")
    def _in_order(self) -> Comparison:
        order = list(self.arms)
        for arm, before in self.after.items():
            if not {arm, before} <= set(order) or order.index(before) > order.index(arm):
                raise ValueError(f"after: {arm!r} goes on from {before!r}; arms must have both, {before!r} first: {order}")
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=sorted(path.stem for path in COMPARISONS.glob("*.yaml")))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--no-training", action="store_true", help="only the table of what was trained before")
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time; their durations then say nothing")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further overrides for every run")
    arguments = parser.parse_args()
    comparison = load(arguments.comparison)
    if unknown := set(arguments.arms or ()) - comparison.arms.keys():
        parser.error(f"no arms {sorted(unknown)} in {arguments.comparison}: there are {list(comparison.arms)}")
    machine = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"
    write(f"{machine}, {comparison.config}, {arguments.at_once} at once\n")
    reached = [f"at {calls:,} calls" for calls in comparison.at_tool_calls]
    head = ["arm", "seed", "start", *reached, "best", "end", "end by level", *COSTS]
    write(line(head) + "\n|" + "---|" * len(head))
    with ThreadPoolExecutor(arguments.at_once) as executor:
        rows: dict[tuple[str, int], Future[str]] = {}
        more = None if arguments.no_training else arguments.set
        for arm in arguments.arms or comparison.arms:
            for seed in arguments.seeds:
                before = rows.get((comparison.after.get(arm, ""), seed))
                rows[arm, seed] = executor.submit(one, arguments.comparison, comparison, arm, seed, more, before)
        for row in rows.values():
            write(row.result())
    if any(FAILED in row.result() for row in rows.values()):
        raise SystemExit(1)


def load(name: str) -> Comparison:
    """A comparison by the name of its file."""
    return Comparison.model_validate(OmegaConf.to_container(OmegaConf.load(COMPARISONS / f"{name}.yaml")))


def one(
    name: str, comparison: Comparison, arm: str, seed: int, more: list[str] | None, before: Future[str] | None = None
) -> str:
    """Train one arm with one seed, unless `more` overrides are None; returns its line of the table.

    Args:
        before: what must have ended first.
    """
    run = folder(name, arm, seed)
    if before:
        before.result()
    if more is not None:
        chosen = [f"run.name={run.name}", f"run.seed={seed}", "run.if_exists=replace"]
        try:
            begin = follow(folder(name, comparison.after[arm], seed)) if arm in comparison.after else []
            overrides = [*chosen, *comparison.overrides, *begin, *comparison.arms[arm], *more]
            cacherl("train", "--config", comparison.config, *overrides)
        except subprocess.CalledProcessError as error:
            return line([arm, seed, f"{FAILED} {error.returncode}: {error.stdout.strip().splitlines()[-1:]}"])
    if not (run / SUMMARY_FILE).exists():
        return line([arm, seed, "not run"])
    return line([arm, seed, *figures(run, comparison.at_tool_calls)])


def folder(name: str, arm: str, seed: int) -> Path:
    """Of the run of one arm with one seed."""
    return PROJECT / "runs" / "-".join([name, *re.findall(r"[a-z0-9.]+", arm.lower()), str(seed)])


def follow(run_dir: Path) -> list[str]:
    """Overrides by which a run goes on from a finished one: its model, and an export of its pool to imitate."""
    pool = run_dir / "pool.crlp"
    cacherl("replay", "export", "--run", str(run_dir), str(pool))
    return [f"model.path={run_dir / 'final_model'}", "warm_start.source=replay", f"warm_start.path={pool}"]


def cacherl(*arguments: str) -> None:
    """Run the command; what it says is in the error if it fails."""
    command = [sys.executable, "-m", "deploy", *arguments]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def figures(run_dir: Path, at_tool_calls: Sequence[int]) -> Iterator[str]:
    """The cells of a finished run."""
    run = read_run(run_dir)
    summary = run.summary
    success, calls, turns = map(run.points, ("eval/success", "rollout/tool_calls", "rollout/turns"))
    made = [calls.get(step, 0.0) for step in success]
    yield f"{summary['held_out_start']:.3f}"
    for wanted in at_tool_calls:
        reached = f"{np.interp(wanted, made, list(success.values())):.3f}"
        yield reached if made[-1] >= wanted else f"only {made[-1]:,.0f} made"
    yield f"{max(success.values()):.3f}"
    yield f"{summary['held_out_end']:.3f}"
    levels = [run.points(name) for name in sorted(run.series) if name.startswith("eval/success/")]
    yield " / ".join(f"{level[max(success)]:.2f}" for level in levels if max(success) in level)
    yield f"{np.mean(list(turns.values())[-5:]):.1f}"
    raised = [f"{event.name} {event.subject}".strip() for event in run.alarms]
    yield ", ".join(dict.fromkeys(raised)) or "-"
    yield str(summary["updates"])
    yield f"{summary['episodes']:,}"
    yield f"{max(calls.values(), default=0):,.0f}"
    yield f"{summary['phases'].get('training', 0) + summary['phases'].get('evaluation', 0):.0f} s"
    yield f"{summary['elapsed_s']:.0f} s"


def line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
