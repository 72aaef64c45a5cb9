"""What environments cost: episodes a second for each family with the oracle, and one call of the sandbox for each backend.

    python benchmarks/envs.py --json envs.json

Every figure stands beside a baseline that was taken in turn with it, so that a busy machine disturbs both: an episode beside
JSON round trips of its own messages, a sandbox call beside starting a Python process for it and beside `exec` in this process.
Pure families are measured in processor time of one core; what the sandbox does, other processes do, so that is wall time.
Figures are medians of rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this file's folder, where its own name hides the package

from cacherl.environment_settings import EnvSection, SandboxSection
from envs.agents import OracleAgent
from envs.base import TRAIN, Task, TaskSource
from envs.episode import Episode, play
from envs.registry import PURE, load_source
from envs.sandbox.sandbox import JAILS, BackendError, Sandbox, World
from envs.sandbox.session import Session

Row = dict[str, object]

GROUP = 8
CALLS = {"python": "print(6 * 7)", "sql": "SELECT 6 * 7", "shell": "echo 42"}
SPAWN = [sys.executable, "-I", "-S", "-c", CALLS["python"]]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", type=int, default=40, help="groups of a level in one round of a pure family")
    parser.add_argument("--calls", type=int, default=50, help="calls, and sessions, in one round of a backend")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    rows = [machine_row(options.seed)]
    for section in (family_rows, sandbox_rows, tool_cache_rows):
        for row in section(options):
            sys.stdout.write("  ".join(f"{key} {value}" for key, value in row.items()) + "\n")
            sys.stdout.flush()
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def machine_row(seed: int) -> Row:
    """Where and how it was measured; printed first."""
    models = [
        line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    row: Row = {
        "machine": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "seed": seed,
        "command": " ".join(["python", *sys.argv]),
    }
    sys.stdout.write("  ".join(f"{key} {value}" for key, value in row.items()) + "\n")
    return row


def family_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Groups of siblings, each task drawn anew and played `GROUP` times."""
    for family in (*sorted(PURE), "code"):
        groups = options.groups if family in PURE else max(options.groups // 20, 1)
        source = load_source(EnvSection(name=family, levels=(1,)))
        rng = random.Random(options.seed)
        levels = source.levels(TRAIN)
        drawn: list[float] = []
        played: list[float] = []
        trips: list[float] = []
        clock = time.process_time if family in PURE else time.perf_counter
        for _ in range(options.rounds):
            begin = clock()
            tasks = [source.sample(rng, split=TRAIN, level=level) for level in levels for _ in range(groups)]
            drawn.append((clock() - begin) / len(tasks))
            begin = clock()
            episodes = asyncio.run(play_groups(source, tasks))
            played.append((clock() - begin) / len(episodes))
            begin = clock()
            round_trips(episodes)
            trips.append((clock() - begin) / len(episodes))
        episode = statistics.median(played) + statistics.median(drawn) / GROUP
        yield {
            "family": family,
            "levels": f"1-{levels[-1]}",
            "episodes_per_s": round(1 / episode),
            "time": "cpu" if family in PURE else "wall",
            "us_an_episode": round(statistics.median(played) * 1e6),
            "us_a_task": round(statistics.median(drawn) * 1e6),
            "times_its_json": round(episode / statistics.median(trips), 1),
        }


async def play_groups(source: TaskSource, tasks: list[Task]) -> list[Episode]:
    """Every task `GROUP` times by the oracle, who must succeed."""
    oracle, env = OracleAgent(source), source.make_env()
    episodes = [await play(env, task, oracle, rollout_seed=seed, max_turns=60) for task in tasks for seed in range(GROUP)]
    await env.close()
    if any(episode.outcome != 1.0 for episode in episodes):
        raise RuntimeError(f"the oracle failed in family {source.family}")
    return episodes


def round_trips(episodes: list[Episode]) -> None:
    """The baseline: the text of each message to JSON and back."""
    for episode in episodes:
        for message in episode.messages:
            json.loads(json.dumps({"role": message.role, "content": message.content}))


def sandbox_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Start of a worker, a session, and a call of each tool, for each backend that works here."""
    for backend in (*JAILS, "rlimit"):
        section = SandboxSection(shell=backend == "namespaces", wall_s=60.0, cpu_s=60.0)
        begin = time.perf_counter()
        try:
            sandbox = Sandbox(section, backend=backend)
        except BackendError as error:
            yield {"backend": backend, "refused": str(error)}
            continue
        start_s = time.perf_counter() - begin
        costs = asyncio.run(sandbox_costs(sandbox, options.rounds, options.calls))
        spawn_us = costs.pop("spawn")
        yield {
            "backend": backend,
            "start_ms": round(start_s * 1e3),
            **{f"{name}_us": round(cost) for name, cost in costs.items()},
            "python_process_us": round(spawn_us),
            "session_to_process": round(costs["session"] / spawn_us, 2),
            "python_to_process": round(costs["python"] / spawn_us, 4),
        }
        sandbox.close()


async def sandbox_costs(sandbox: Sandbox, rounds: int, calls: int) -> dict[str, float]:
    """Microseconds of one: session with its first call, call of each tool, `exec` here, Python process."""
    world = World(files={"a.csv": "n\n1\n"}, script="CREATE TABLE a (n INTEGER)")
    held = sandbox.session(world)
    await held.run("python", "1")
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            await begin_and_end(sandbox, world)
        seconds.setdefault("session", []).append((time.perf_counter() - begin) / calls)
        for tool in sandbox.tools:
            seconds.setdefault(tool, []).append(await call_seconds(held, tool, calls))
        seconds.setdefault("exec_here", []).append(timed(lambda: exec("6 * 7", {}), calls))
        seconds.setdefault("spawn", []).append(timed(spawn, max(calls // 10, 1)))
    held.close()
    return {name: statistics.median(values) * 1e6 for name, values in seconds.items()}


async def begin_and_end(sandbox: Sandbox, world: World) -> None:
    """A session of one call."""
    session = sandbox.session(world)
    await session.run("python", CALLS["python"])
    session.close()


async def call_seconds(session: Session, tool: str, calls: int) -> float:
    """Mean of `calls` calls, each of which must succeed."""
    begin = time.perf_counter()
    for _ in range(calls):
        reply = await session.run(tool, CALLS[tool])
        if reply.text != "42":
            raise RuntimeError(f"{tool} gave {reply}")
    return (time.perf_counter() - begin) / calls


def spawn() -> None:
    """A fresh, bare Python process that does what a `python` call does."""
    subprocess.run(SPAWN, check=True, stdout=subprocess.DEVNULL)


def timed(action: Callable[[], Any], times: int) -> float:
    """Mean seconds."""
    begin = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - begin) / times


def tool_cache_rows(options: argparse.Namespace) -> Iterator[Row]:
    """A result from the tool-result cache, per store and tier: tool_cache.py beside this file."""
    spec = importlib.util.spec_from_file_location("tool_cache_benchmark", Path(__file__).with_name("tool_cache.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for row in module.rows(entries=2000, calls=options.calls):
        yield {"section": "tool cache", **row}


if __name__ == "__main__":
    main()
