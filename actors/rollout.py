"""Groups: the siblings of one task played side by side, failures retried and left out, nothing about Ray."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from actors.episode import Member
from actors.exploration import explored_members
from actors.players import Player
from cacherl.errors import CacheRLError, EnvironmentFault, boundary
from cacherl.trajectory import Trajectory, TrajectoryGroup
from envs.base import Task, ToolEnv

logger = logging.getLogger(__name__)

#: Seconds that an environment gets to close.
_CLOSE_S = 30.0
#: Groups whose reward may be waited for at a time; threads start when they are needed.
_SCORING_THREADS = 16


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2^31) that depends on all `parts` and on nothing else, the same in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**31


class Scorer(Protocol):
    """Rewards of a group; `rewards.composer.Composer` is one."""

    @property
    def blocking(self) -> bool:
        """`score` waits for a network or a model, so it must not run on the event loop."""

    def score(self, members: Sequence[Trajectory], scales: Mapping[str, float]) -> tuple[Trajectory, ...]:
        """The finished siblings with their rewards; `scales` are factors of the components' weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A group to play.

    Attributes:
        group_id: globally unique, also among runs.
        size: members.
        seed: fixes every seed inside the group.
        scales: component of the reward -> factor of its weight for all members; 1 where there is none.
        exploration: chance in [0, 1) that a member is the explorer's and not the policy's; of one it never is.
    """

    group_id: str
    task: Task
    size: int
    seed: int
    scales: Mapping[str, float] = field(default_factory=dict)
    exploration: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """What became of a group.

    Attributes:
        group: the members that finished; None when fewer than two did (or none of a group of one): no baseline is left,
            when none of the policy's did: there is nothing to compare the explorer with, or when their reward failed.
        errors: why the others failed, one message each.
        explored: ids of the trajectories that the explorer played, finished or not.
    """

    group: TrajectoryGroup | None
    errors: tuple[str, ...]
    explored: frozenset[str] = frozenset()


class Rollout:
    """Plays groups and single episodes with one policy, and some members of groups with an explorer.

    Args:
        player: lets the policy act.
        make_env: a fresh environment for one episode.
        max_retries: further attempts for a member that infrastructure failed.
        explorer_of: the explorer of a member; None: no group asks for one.
    """

    def __init__(
        self,
        *,
        player: Player,
        make_env: Callable[[], ToolEnv],
        scorer: Scorer,
        max_retries: int,
        explorer_of: Callable[[Member], Player] | None = None,
    ) -> None:
        self._player = player
        self._make_env = make_env
        self._scorer = scorer
        self._max_retries = max_retries
        self._explorer_of = explorer_of
        self._scoring = ThreadPoolExecutor(_SCORING_THREADS, thread_name_prefix="reward")

    async def group(self, request: GroupRequest) -> PlayedGroup:
        """Play all members of `request` at once. Failed ones are left out, and never enter the group's baseline.

        Raises:
            ConfigError: the reward cannot work with these episodes.
            ValueError: the group asks for an explorer, and there is none.
        """
        members = [
            Member(
                task=request.task,
                trajectory_id=f"{request.group_id}:{index}",
                rollout_seed=derive_seed(request.seed, index),
            )
            for index in range(request.size)
        ]
        explorers = self._explorers(request, members)
        explored = frozenset(explorers)
        players = (explorers.get(member.trajectory_id, self._player) for member in members)
        played = await asyncio.gather(*map(self._attempt, members, players))
        finished = tuple(result for result in played if isinstance(result, Trajectory))
        errors = tuple(str(result) for result in played if isinstance(result, CacheRLError))
        if len(finished) < min(2, request.size) or explored.issuperset(one.trajectory_id for one in finished):
            return PlayedGroup(group=None, errors=errors, explored=explored)
        try:
            finished = await self._scored(finished, request)
        except EnvironmentFault as error:
            logger.warning("%s", error)
            return PlayedGroup(group=None, errors=(*errors, str(error)), explored=explored)
        group = TrajectoryGroup(
            group_id=request.group_id,
            task_id=request.task.task_id,
            trajectories=finished,
            num_failed=len(errors),
            created_at=time.time(),
        )
        return PlayedGroup(group=group, errors=errors, explored=explored)

    def _explorers(self, request: GroupRequest, members: Sequence[Member]) -> dict[str, Player]:
        """Trajectory id -> who plays it, of the members that the policy does not."""
        if not request.exploration:
            return {}
        if self._explorer_of is None:
            raise ValueError(f"group {request.group_id}: exploration {request.exploration:g} needs an explorer, there is none")
        places = explored_members(request.seed, request.size, request.exploration)
        return {members[place].trajectory_id: self._explorer_of(members[place]) for place in sorted(places)}

    async def _scored(self, members: Sequence[Trajectory], request: GroupRequest) -> tuple[Trajectory, ...]:
        with boundary(EnvironmentFault, f"the reward of task {request.task.task_id} failed"):
            if not self._scorer.blocking:
                return self._scorer.score(members, request.scales)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._scoring, self._scorer.score, members, request.scales)

    async def each(self, tasks: Sequence[Task], *, label: str, seed: int) -> list[Trajectory | CacheRLError]:
        """Play one episode of each task, in order, unscored; the last error where infrastructure failed every attempt.

        Args:
            label: tells these episodes from others of the same tasks.
            seed: fixes the tools' noise and the sampling of every episode, whatever its label.
        """
        members = [
            Member(task=task, trajectory_id=f"{label}:{task.task_id}", rollout_seed=derive_seed(seed, task.task_id))
            for task in tasks
        ]
        return list(await asyncio.gather(*(self._attempt(member, self._player) for member in members)))

    async def _attempt(self, member: Member, player: Player) -> Trajectory | CacheRLError:
        failure: CacheRLError | None = None
        for attempt in range(self._max_retries + 1):
            try:
                return await self._play(member, player)
            except CacheRLError as error:
                failure = error
                logger.warning("attempt %d of %s failed: %s", attempt + 1, member.trajectory_id, error)
        assert failure is not None
        return failure

    async def _play(self, member: Member, player: Player) -> Trajectory:
        with boundary(EnvironmentFault, f"no environment could be made for task {member.task.task_id}"):
            env = self._make_env()
        try:
            return await player.play(member, env)
        finally:
            await close_env(env)


async def close_env(env: ToolEnv) -> None:
    """Close an environment whose episode is over; a failure to do so is logged, because it concerns nobody any more."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await env.close()
    except Exception as error:
        logger.warning("an environment did not close: %r", error)
