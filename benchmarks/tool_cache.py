"""What a tool result from the cache costs, by store and tier, next to a miss, a record and the simulated tool itself.

    python benchmarks/tool_cache.py --entries 10000

`rows` is for other benchmarks to call: one row for each store and kind of call, in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, where a file hides the package envs

from cacherl.environment_settings import EnvSection, ToolCacheSection
from envs.registry import load_source
from envs.simulator import ToolResult
from envs.tool_cache.cache import ToolCache
from envs.tool_cache.entry import CallKey, Recorded
from envs.tool_cache.memory import MemoryStore
from envs.tool_cache.recording import Recording
from envs.tool_cache.redis_store import RedisStore
from envs.tool_cache.store import Store
from replay_service.server import ReplayServer

_WORDS = [
    first + second for first in ("bar", "del", "fin", "gor", "hem", "jul", "kan", "lor") for second in ("a", "e", "i", "o")
]
_SECTION = ToolCacheSection(
    mode="record_replay", tiers=("exact", "normalised", "best_effort"), similar={"search": {"query": 0.9}}
)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=10_000, help="results recorded before measuring")
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind")
    options = parser.parse_args()
    for row in rows(entries=options.entries, calls=options.calls):
        sys.stdout.write("  ".join(f"{key} {value}" for key, value in row.items()) + "\n")


def rows(*, entries: int = 10_000, calls: int = 300) -> list[dict[str, object]]:
    """Median microseconds of a call by store and kind, with `entries` results recorded in eight states; a
    near match looks at up to 256 of them."""
    with tempfile.TemporaryDirectory() as folder:
        found = [row for name, store in _stores(Path(folder)) for row in asyncio.run(_measure(name, store, entries, calls))]
    return [*found, _simulated(calls)]


@contextmanager
def _redis(folder: Path) -> Iterator[Store]:
    with ReplayServer(folder) as server:
        store = RedisStore(server.url, "benchmark", max_entries=10**6, max_bytes=2**30)
        yield store
        store.close()


def _stores(folder: Path) -> Iterator[tuple[str, Store]]:
    limits = {"max_entries": 10**6, "max_bytes": 2**30}
    yield "memory", MemoryStore(**limits)
    yield "file", MemoryStore(**limits, recording=Recording(folder / "tools.jsonl", keep=10**6))
    with _redis(folder / "redis") as store:
        yield "redis", store


async def _measure(name: str, store: Store, entries: int, calls: int) -> list[dict[str, object]]:
    cache, rng = ToolCache(store, _SECTION), random.Random(0)
    asked: list[CallKey] = []
    for number in range(entries):
        query = f"{rng.choice(_WORDS)} {rng.choice(_WORDS)} {number}"
        key = CallKey(state=f"s{number % 8}", tool="search", arguments={"query": query, "page": 1})
        asked.append(key)
        await cache.record(_recorded(key))
    picked = [rng.choice(asked) for _ in range(calls)]
    kinds: dict[str, Callable[[CallKey], CallKey]] = {
        "exact": lambda key: key,
        "normalised": lambda key: _with(key, query=str(key.arguments["query"]).upper()),
        "similar": lambda key: _with(key, query=f"{key.arguments['query']} please"),
        "best_effort": lambda key: _with(key, query="zzz"),
        "miss": lambda key: CallKey(state="another", tool=key.tool, arguments=key.arguments),
    }
    found = []
    for kind, change in kinds.items():
        asking = [change(key) for key in picked]
        found.append(_row(name, kind, [await _timed(lambda key=key: cache.find(key, read_only=True)) for key in asking]))
    fresh = [_recorded(_with(key, page=index + 2)) for index, key in enumerate(picked)]
    found.append(_row(name, "record", [await _timed(lambda entry=entry: cache.record(entry)) for entry in fresh]))
    return found


def _simulated(calls: int) -> dict[str, object]:
    """A call of the research family's simulator, for scale."""
    source = load_source(EnvSection(name="research"))
    task = source.sample(random.Random(0), split="train", level=1)
    text = source.format.render(source.solution(task).calls[:1])

    async def play() -> list[float]:
        env = source.make_env()
        await env.reset(task, rollout_seed=0)
        return [await _timed(lambda: env.step(text)) for _ in range(calls)]

    return _row("none", "simulated turn", asyncio.run(play()))


def _recorded(key: CallKey) -> Recorded:
    return Recorded(key=key, result=ToolResult(content={"text": "x" * 200}))


def _with(key: CallKey, **changes: object) -> CallKey:
    return CallKey(state=key.state, tool=key.tool, arguments={**key.arguments, **changes})


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await call()
    return time.perf_counter() - begin


def _row(store: str, kind: str, seconds: list[float]) -> dict[str, object]:
    ordered = sorted(seconds)
    return {
        "store": store,
        "call": kind,
        "median_us": round(statistics.median(ordered) * 1e6, 1),
        "p95_us": round(ordered[int(0.95 * (len(ordered) - 1))] * 1e6, 1),
    }


if __name__ == "__main__":
    main()
