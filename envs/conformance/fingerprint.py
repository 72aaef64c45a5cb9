"""`fingerprint`: episodes as hashes, to compare them between processes.

Run as a module it reads `{"section": {...}, "task_ids": [...]}` from stdin and writes `{task_id: hash}` to stdout.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence

from cacherl.environment_settings import EnvSection
from envs.agents import OracleAgent, RandomAgent
from envs.base import TaskSource
from envs.episode import play
from envs.registry import build_source

_MAX_TURNS = 20


async def fingerprint(source: TaskSource, task_ids: Sequence[str]) -> dict[str, str]:
    """Task id -> hash of everything that a random and an oracle agent see of it."""
    agents = (RandomAgent(source, seed=1), OracleAgent(source))
    env = source.make_env()
    hashes = {}
    for task_id in task_ids:
        episodes = [await play(env, source.get(task_id), agent, rollout_seed=5, max_turns=_MAX_TURNS) for agent in agents]
        hashes[task_id] = hashlib.sha256(repr(episodes).encode()).hexdigest()
    await env.close()
    return hashes


def _main() -> None:
    request = json.load(sys.stdin)
    source = build_source(EnvSection.model_validate(request["section"]))
    sys.stdout.write(json.dumps(asyncio.run(fingerprint(source, request["task_ids"]))) + "\n")


if __name__ == "__main__":
    _main()
