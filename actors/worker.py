"""RolloutWorker: one actor process. An engine, an episode loop, and a connection to the replay service."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.briefing import briefed_chat
from actors.chat import Chat
from actors.engine import Engine, EngineSettings, abandon_start
from actors.episode import EpisodeLimits
from actors.exploration import Explorers
from actors.players import PolicyPlayer
from actors.policy import Policy, Sampling
from actors.report import EpisodeSummary, GroupReport
from actors.rollout import GroupRequest, Rollout, derive_seed
from actors.scoring import composer_of
from actors.weights import StagedWeights
from cacherl.config import RunConfig
from cacherl.errors import DeadlineExceeded, EngineDied
from cacherl.policy import WeightManifest
from cacherl.process import redirect_output
from cacherl.secrets import Secrets
from cacherl.trajectory import Trajectory, TrajectoryGroup
from envs.base import Task, TaskSource
from envs.registry import load_source
from replay_service.store import Replay
from rewards.composer import Composer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)

#: Seconds between two attempts to push while the replay service holds the actors back.
PUSH_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Everything an actor needs to know.

    Attributes:
        name: its name in the run ('actor-0').
        model: Hugging Face folder on this node.
        replay_url, replay_namespace: where groups go.
        priority: priority of a fresh group; 0 for one without a gradient.
        log_file: where the process's output goes.
        secrets: of the replay service and the judge.
    """

    name: str
    config: RunConfig
    model: Path
    replay_url: str
    replay_namespace: str
    priority: Callable[[TrajectoryGroup], float]
    log_file: Path
    secrets: Secrets = field(default_factory=Secrets)


class RolloutWorker:
    """The Ray actor's class. All methods run on one event loop."""

    def __init__(self, spec: WorkerSpec) -> None:
        redirect_output(spec.log_file)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        spec.secrets.install()
        self._spec = spec
        self._staged: StagedWeights | None = None
        self._source: TaskSource = load_source(spec.config.env)
        self._scorer = composer_of(spec.config, self._source)
        self._replay = Replay(spec.replay_url, spec.replay_namespace, spec.config.replay)

    def __repr__(self) -> str:
        return f"rollout {self._spec.name}"

    async def start(self) -> str:
        """Start the engine and return the id of the node it runs on.

        Raises:
            ConfigError: the model's tokenizer cannot be used token in, token out.
            EngineError: vLLM did not start.
        """
        import ray
        from transformers import AutoTokenizer

        config = self._spec.config
        self._chat = briefed_chat(AutoTokenizer.from_pretrained(self._spec.model), config, self._source)
        self._engine = await Engine.start(engine_settings(config, self._spec.model, self._chat.end_of_turn))
        sampling = Sampling(temperature=config.rollout.temperature, max_new_tokens=config.rollout.max_new_tokens)
        greedy = Sampling(temperature=config.rollout.temperature, max_new_tokens=config.rollout.max_new_tokens, greedy=True)
        self._sampled = self._rollout(self._engine, sampling)
        self._greedy = self._rollout(self._engine, greedy)
        return str(ray.get_runtime_context().get_node_id())

    def _rollout(self, policy: Policy, sampling: Sampling) -> Rollout:
        return make_rollout(self._spec.config, policy, self._source, self._chat, self._scorer, sampling)

    async def play(self, request: GroupRequest) -> GroupReport:
        """Play one group and push it; waits while the replay service holds the actors back.

        Raises:
            EngineDied: this actor must be replaced.
            DeadlineExceeded: the replay service did not take the group in time.
            ReplayError: the replay service cannot be reached.
        """
        played = await self._sampled.group(request)
        self._require_engine()
        if played.group is None:
            return GroupReport(
                group_id=request.group_id, actor=self._spec.name, push="failed", episodes=(), errors=played.errors
            )
        status = await self._push(played.group)
        episodes = tuple(
            EpisodeSummary.of(one, explored=one.trajectory_id in played.explored) for one in played.group.trajectories
        )
        return GroupReport(
            group_id=request.group_id, actor=self._spec.name, push=status, episodes=episodes, errors=played.errors
        )

    def _require_engine(self) -> None:
        if self._engine.dead:
            raise EngineDied(f"the engine of {self._spec.name} died; see {self._spec.log_file.name}")

    async def _push(self, group: TrajectoryGroup) -> str:
        priority = self._spec.priority(group)
        deadline_s = longest_wait_s(self._spec.config)
        deadline = time.monotonic() + deadline_s
        while (result := await asyncio.to_thread(self._replay.try_push, group, priority=priority)).status == "throttle":
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"the learner to use what the pool holds, so that {group.group_id} may be pushed", deadline_s
                )
            await asyncio.sleep(PUSH_POLL_S * random.uniform(0.5, 1.5))
        return str(result.status)

    async def evaluate(self, tasks: Sequence[Task], label: str) -> list[EpisodeSummary]:
        """Play one greedy episode of each task; nothing is pushed. The tools' noise is the same whatever the label.

        Raises:
            EngineDied: this actor must be replaced.
            EngineError, EnvironmentFault: an episode failed every attempt.
        """
        seed = derive_seed(self._spec.config.run.seed, "evaluation")
        played = await self._greedy.each(tasks, label=label, seed=seed)
        self._require_engine()
        summaries = []
        for result in played:
            if not isinstance(result, Trajectory):
                raise result
            summaries.append(EpisodeSummary.of(result))
        return summaries

    async def sample(self, tasks: Sequence[Task], label: str) -> list[Trajectory]:
        """Play one sampled episode of each task and return the trajectories themselves, for checks of the token path."""
        played = await self._sampled.each(tasks, label=label, seed=derive_seed(label))
        return [result for result in played if isinstance(result, Trajectory)]

    async def stage_weights(self, manifest: WeightManifest, buffer: npt.NDArray[np.uint8]) -> str:
        """Copy a version into this node's shared memory for every engine on it; returns its path.

        The version staged before is released.
        """
        staged = await asyncio.to_thread(StagedWeights, manifest, buffer)
        self._staged, previous = staged, self._staged
        if previous:
            previous.close()
        return staged.path

    async def load_weights(self, manifest: WeightManifest, path: str) -> int:
        """Swap the engine's weights in flight; returns the version as acknowledgement."""
        await self._engine.load_weights(manifest, path, deadline_s=self._spec.config.weights.deadline_s)
        return manifest.version

    async def close(self) -> None:
        """Stop the engine and leave no process behind."""
        if hasattr(self, "_engine"):
            self._engine.close()
        else:
            await asyncio.to_thread(abandon_start)
        if self._staged:
            self._staged.close()
        self._replay.close()


def longest_wait_s(config: RunConfig) -> float:
    """Seconds that a push may have to wait: what an update, its publish and an evaluation may take, and replay.deadline_s."""
    between_draws = config.learner.update_deadline_s + config.weights.deadline_s + config.eval.deadline_s
    return between_draws + config.replay.deadline_s


def make_rollout(
    config: RunConfig, policy: Policy, source: TaskSource, chat: Chat, scorer: Composer, sampling: Sampling
) -> Rollout:
    """A `Rollout` with the limits of `config`, and its explorers if it has any."""
    limits = EpisodeLimits(
        max_turns=config.env.max_turns, max_length=config.model.max_length, timeout_s=config.rollout.episode_timeout_s
    )
    explorers = Explorers(
        settings=config.exploration, policy=policy, source=source, chat=chat, sampling=sampling, limits=limits
    )
    return Rollout(
        player=PolicyPlayer(policy=policy, chat=chat, sampling=sampling, limits=limits),
        make_env=source.make_env,
        scorer=scorer,
        max_retries=config.rollout.max_retries,
        explorer_of=explorers if config.exploration.rate else None,
    )


def engine_settings(config: RunConfig, model: Path, end_of_turn: int) -> EngineSettings:
    """The engine's part of `config`."""
    dtype: Any = config.model.dtype
    if dtype == "auto" and not config.actors.gpus_per_actor:
        dtype = "float32"
    return EngineSettings(
        model=model,
        dtype=dtype,
        max_length=config.model.max_length,
        max_sequences=max(64, config.actors.groups_in_flight * config.rollout.group_size),
        end_of_turn=end_of_turn,
        gpus=config.actors.gpus_per_actor,
        gpu_memory_utilization=config.actors.gpu_memory_utilization,
        seed=config.run.seed,
    )
