"""Re-scoring: after an edit of the reward, what the pool holds is given the rewards of the new one."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from actors.scoring import composer_of
from cacherl.config import RunConfig
from cacherl.errors import DeadlineExceeded
from cacherl.reward_settings import JUDGE_MISSING
from cacherl.trajectory import TrajectoryGroup
from deploy.priority import FreshPriority
from deploy.run_dir import note_reward
from envs.registry import load_source
from replay_service.plan import RescoreStatus
from replay_service.store import Replay
from rewards.user import source_digest

#: Seconds between two looks at groups that a learner holds.
_LEASE_POLL_S = 0.2
#: Seconds beyond the length of a lease after which a group that is still held is an error.
_LEASE_SLACK_S = 30.0

#: Priorities that depend on the group alone; with any other, groups that are done already count for those that follow.
_MEMORYLESS = ("advantage", "constant")

Progress = Callable[[int, int], None]


def unheeded(done: int, total: int) -> None:
    """Progress that nobody is told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreResult:
    """Groups of the pool.

    Attributes:
        rescored: have the new rewards and priority now.
        dropped: have no gradient under the new reward and were removed, as if they had been pushed with it.
        known: had been re-scored with this reward before.
        gone: were evicted meanwhile.
        unjudged: of the re-scored ones, those with a member that the judge gave no score; the next re-scoring asks again.
    """

    rescored: int
    dropped: int
    known: int
    gone: int
    unjudged: int = 0


def rescore_pool(pool: Replay, config: RunConfig, *, progress: Progress = unheeded, leased_too: bool = False) -> RescoreResult:
    """Re-score every group that is in the pool now with the reward of `config`, at its full weights.

    Each group changes at once; one that a learner holds does when it is given back. Whoever calls again with the same settings
    after an interruption goes on with the groups that are left.

    Args:
        progress: called with groups done and in total.
        leased_too: wait for no learner, because there is none.

    Raises:
        ConfigError: the reward cannot work with the stored trajectories.
        DeadlineExceeded: a learner kept a group for longer than a lease.
    """
    composer = composer_of(config, load_source(config.env))
    fresh, mark = FreshPriority(config), fingerprint(config)
    infos = sorted(pool.entries(), key=lambda info: info.sequence)
    known = pool.marked(mark) if config.replay.priority in _MEMORYLESS else set()
    left = [info.group_id for info in infos if info.group_id not in known]
    counts: Counter[str] = Counter(done=len(infos) - len(left))
    priorities: dict[str, float] = {}
    unjudged: set[str] = set()

    def rescore(group: TrajectoryGroup | None) -> RescoreStatus:
        if group is None:
            return "gone"
        scored = replace(group, trajectories=composer.score(group.trajectories))
        if group.group_id not in priorities:
            priorities[group.group_id] = fresh(scored)
        judged = all(JUDGE_MISSING not in member.rewards for member in scored.trajectories)
        status = pool.rescore(
            scored, priority=priorities[group.group_id], mark=mark if judged else _unfinished(), leased_too=leased_too
        )
        if status == "ok" and not judged:
            unjudged.add(group.group_id)
        return status

    deadline = time.monotonic() + config.replay.lease_s + _LEASE_SLACK_S
    while left:
        held = []
        for group_id, group in zip(left, pool.iterate(left), strict=True):
            status = rescore(group)
            if status == "leased":
                held.append(group_id)
            else:
                counts[status] += 1
                progress(counts.total(), len(infos))
        if held and time.monotonic() > deadline:
            raise DeadlineExceeded(f"a learner to give back {len(held)} groups, {held[0]!r} among them", config.replay.lease_s)
        if held:
            time.sleep(_LEASE_POLL_S)
            pool.reap()
        left = held
    return RescoreResult(
        rescored=counts["ok"],
        dropped=counts["dropped"],
        known=counts["done"],
        gone=counts["gone"],
        unjudged=len(unjudged),
    )


def rescore_run(folder: Path, pool: Replay, config: RunConfig, *, alone: bool, progress: Progress = unheeded) -> RescoreResult:
    """`rescore_pool` of the run in `folder`, which notes the reward that its groups have from now on.

    It notes none while that is not all of them: until the end; when the judge gave some no score; and beside a session of the
    run, whose actors push groups with the reward that it began with. A resume then re-scores what is left.

    Args:
        pool: of the run.
        alone: no other process runs the run, so no learner holds groups either.

    Raises:
        As `rescore_pool`.
    """
    note_reward(folder, None)
    result = rescore_pool(pool, config, progress=progress, leased_too=alone)
    if alone and not result.unjudged:
        note_reward(folder, fingerprint(config))
    return result


def _unfinished() -> str:
    """A mark that no group has yet, for rewards that are not what they should be."""
    return f"unfinished-{secrets.token_hex(8)}"


def fingerprint(config: RunConfig) -> str:
    """Hash of everything that rewards and fresh priorities depend on: the settings, and the files of a user's components."""
    settings = config.model_dump(
        mode="json", include={"reward": True, "advantage": True, "env": {"name", "max_turns"}, "model": {"max_length"}}
    )
    settings["priority"] = config.replay.priority
    if code := [source_digest(part) for part in config.reward.components if part.weight]:
        settings["code"] = code
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
