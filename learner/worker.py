"""LearnerWorker: one rank of the learner, from the sampled batch to the published weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from cacherl.config import RunConfig
from cacherl.durable import WrittenFile, describe, sync_folder
from cacherl.errors import CheckpointError, NotFiniteError
from cacherl.policy import FIRST_VERSION, WeightManifest, staleness
from cacherl.stateful import Stateful, collect, restore
from cacherl.trajectory import Trajectory
from learner.batch import partition, row_of
from learner.checkpoint import POLICY_FOLDER, RandomState, StateWriter, copied, read_state, verified, write_state
from learner.correction import divergence
from learner.demonstrations import Demonstrations
from learner.engine import PolicyEngine, Rendezvous, join
from learner.export import save_folder
from learner.kl_reward import KLReward
from learner.policy_model import frozen_copy
from learner.preparation import Preparation, Prepared, Sampled
from learner.publish import flatten
from learner.reward_parts import compared_parts
from learner.scoring import score
from learner.sft import SupervisedTrainer
from learner.stats import RankStats
from learner.trainer import PolicyTrainer, Reference, TrainResult
from replay_service.archive import write_archive
from replay_service.plan import PlanEntry, SamplePlan
from replay_service.priorities import Prioritizer
from replay_service.store import Replay

logger = logging.getLogger(__name__)


class LearnerWorker:
    """One rank. Every method is called on all ranks with the same arguments; `setup` comes first.

    Args:
        config: the run's configuration.
        model: Hugging Face folder of the initial weights.
        replay_url, replay_namespace: of the replay pool.
        folder: where a batch that made a loss of no number is saved.
    """

    def __init__(
        self, config: RunConfig, model: Path, *, replay_url: str, replay_namespace: str, rank: int, world: int, folder: Path
    ) -> None:
        self._config = config
        self._model_dir = model
        self._rank = rank
        self._world = world
        self._folder = folder
        self._replay = Replay(replay_url, replay_namespace, config.replay)
        self._device = torch.device("cuda", 0) if config.learner.gpus_per_worker else torch.device("cpu")
        self._prioritizer = Prioritizer(config.replay.priority)
        self._version = FIRST_VERSION
        self._supervised: SupervisedTrainer | None = None
        self._trainer: PolicyTrainer | None = None
        self._writer = StateWriter(rank)
        self._kl_reward: KLReward | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights: the configured one; 'auto' is bfloat16 on a GPU and float32 on a CPU."""
        name = self._config.model.dtype
        automatic = "bfloat16" if self._device.type == "cuda" else "float32"
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[automatic if name == "auto" else name]

    def setup(self, address: str, port: int, threads: int) -> None:
        """Join the other ranks and load the model.

        Args:
            address, port: where rank 0 listens.
            threads: CPU threads until the first update.
        """
        torch.set_num_threads(threads)
        torch.manual_seed(self._config.run.seed)
        timeout = self._config.learner.update_deadline_s
        join(Rendezvous(rank=self._rank, world=self._world, address=address, port=port, timeout_s=timeout), self._device)
        self._engine = PolicyEngine(
            self._model_dir,
            self._config.learner,
            dtype=self.dtype,
            lr=self._config.learner.lr,
            device=self._device,
            world=self._world,
            critic=self._config.advantage.estimator == "gae",
        )

    def start_warm_start(self, demonstrations: Demonstrations) -> None:
        """Take the demonstrations for `warm_start`."""
        self._supervised = SupervisedTrainer(
            self._engine,
            demonstrations,
            self._config.warm_start,
            learner=self._config.learner,
            seed=self._config.run.seed,
            rank=self._rank,
        )

    def warm_start(self, updates: int) -> list[float]:
        """Make `updates` supervised steps; returns the loss of each, in nats per token.

        Raises:
            RuntimeError: `start_warm_start` was not called.
        """
        if self._supervised is None:
            raise RuntimeError("warm_start before start_warm_start")
        return self._supervised.run(updates)

    def update(self, batch_id: str) -> RankStats:
        """Sample batch `batch_id`, train on this rank's share of it and acknowledge it with new priorities.

        Raises:
            DeadlineExceeded: no batch could be sampled within replay.deadline_s.
            LearnerError: every group of the batch has been evicted.
            NotFiniteError: the loss or its gradient is not finite; the batch is saved.
        """
        trainer = self._trainer or self._start_rl()
        plan = self._replay.sample(batch_id, self._config.learner.batch_size // self._config.rollout.group_size)
        started = time.perf_counter()
        entries = self._share(plan)
        groups = self._replay.fetch([entry.group_id for entry in entries])
        stored = [(entry, group) for entry, group in zip(entries, groups, strict=True) if group is not None]
        sampled = stored if self._kl_reward is None else self._kl_reward(stored)
        prepared = Preparation(self._engine, self._config)(sampled)
        with self._saving(stored):
            result = trainer.train(prepared.rows, self._version)
        priorities, divergences = self._judged(sampled, prepared, result)
        status = self._replay.ack(batch_id, rank=self._rank, world=self._world, priorities=priorities, divergences=divergences)
        if status == "late":
            logger.warning("batch %s took longer than replay.lease_s: its groups were given back as they were", batch_id)
        metrics = result.metrics | self._replay_metrics(plan)
        self._version += 1
        metrics |= {"learner/version": float(self._version), "time/update": time.perf_counter() - started}
        missing = len(entries) - len(sampled)
        if missing:
            logger.warning("batch %s: %d of %d groups were evicted before they were fetched", batch_id, missing, len(entries))
        parts = tuple(part for _, group in sampled for part in compared_parts(group, self._config.advantage))
        return RankStats(version=self._version, metrics=metrics, group_ids=tuple(priorities), parts=parts, missing=missing)

    def publish(self, version: int) -> tuple[WeightManifest, npt.NDArray[np.uint8]] | None:
        """Gather the weights; on rank 0 their manifest and flat buffer, None elsewhere."""
        weights = self._engine.full_weights()
        return None if weights is None else flatten(weights, version)

    def token_logprobs(self, trajectories: Sequence[Trajectory]) -> list[npt.NDArray[np.float32]]:
        """float32 [S] per trajectory: log-probability of each sampled token at the trajectory's temperature."""
        return score(self._engine, [row_of(trajectory) for trajectory in trajectories], self._config.learner).logprobs

    def save(self, directory: Path) -> None:
        """Write the policy as a Hugging Face folder (rank 0 writes, every rank takes part)."""
        weights = self._engine.full_weights()
        if weights is not None:
            save_folder(weights, self._model_dir, directory)

    def snapshot(self, folder: Path) -> None:
        """Copy the state of training and begin to write it into `folder`: one file per rank, and from rank 0 the policy.

        Returns once the copy is made, or with checkpoint.asynchronous=false once the files are on disk.
        """
        if self._trainer is None:  # or the checkpoint would hold the warm start's moments, which the first update forgets
            self._start_rl()
        weights = self._engine.full_weights()
        state = copied({"version": self._version, "world": self._world, "parts": collect(self._parts())})

        def write() -> list[WrittenFile]:
            files = [write_state(folder, self._rank, state)]
            if weights is not None:
                policy = folder / POLICY_FOLDER
                save_folder(weights, self._model_dir, policy)
                sync_folder(policy)
                files += [describe(folder, f"{POLICY_FOLDER}/{path.name}") for path in sorted(policy.iterdir())]
            return files

        self._writer.start(folder, write, wait=not self._config.checkpoint.asynchronous)

    def restore(self, folder: Path, files: Sequence[WrittenFile]) -> int:
        """Go on from a checkpoint of a group of the same size and settings; returns its version.

        The learner must have loaded the model that the run's reinforcement learning began with: it becomes the KL reference.

        Raises:
            CheckpointError: the checkpoint is damaged or was made with other settings.
        """
        state = read_state(folder, self._rank, files)
        if state["world"] != self._world:
            raise CheckpointError(f"{folder} was made by learner.workers={state['world']}, not {self._world}")
        if self._trainer is None:
            self._start_rl()
        if not self._engine.holds_weights:
            self._engine.load_weights(load_file(verified(folder, f"{POLICY_FOLDER}/model.safetensors", files)))
        restore(self._parts(), state["parts"], where=str(folder))
        self._version = state["version"]
        return self._version

    def _parts(self) -> dict[str, Stateful]:
        """Everything of this rank that outlives an update."""
        parts: dict[str, Stateful] = {"engine": self._engine, "random": RandomState(self._device)}
        return parts if self._trainer is None else parts | {"kl": self._trainer.kl_coefficient}

    def close(self) -> None:
        """Leave the process group and the replay service."""
        self._writer.close()
        self._replay.close()
        self._engine.close()

    def _start_rl(self) -> PolicyTrainer:
        """Freeze the reference if there is a KL term, forget the optimizer's moments, take the threads of the loop."""
        self._supervised = None
        self._engine.reset_optimizer()
        torch.set_num_threads(self._config.learner.threads)
        reference, placement = self._reference(), self._config.kl.placement
        self._trainer = PolicyTrainer(self._engine, self._config, reference if placement == "loss" else None)
        if reference is not None and placement == "reward":
            self._kl_reward = KLReward(reference, self._config, self._device)
        return self._trainer

    def _reference(self) -> Reference | None:
        if self._config.kl.coef == 0:
            return None
        if self._config.learner.lora.rank:
            return self._engine.reference
        weights = self._engine.full_weights(all_ranks=True)
        return frozen_copy(self._model_dir, self.dtype, weights or {}, self._device)

    def _share(self, plan: SamplePlan) -> list[PlanEntry]:
        """This rank's entries of the plan: disjoint over ranks and covering it, balanced by tokens."""
        shards = partition([entry.tokens for entry in plan.entries], self._world)
        return [plan.entries[index] for index in shards[self._rank]]

    @contextmanager
    def _saving(self, sampled: Sequence[Sampled]) -> Iterator[None]:
        """Keep this rank's share of a batch whose loss is not a number, so that it can be looked into."""
        try:
            yield
        except NotFiniteError as error:
            path = self._folder / f"not-finite-{self._version + 1}-rank-{self._rank}.crlp"
            write_archive(path, [(entry.priority, group) for entry, group in sampled])
            raise NotFiniteError(f"update {self._version + 1}: {error}; its batch is in {path}") from error

    def _judged(
        self, sampled: Sequence[Sampled], prepared: Prepared, result: TrainResult
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Group id -> new priority, and -> `divergence`."""
        priorities: dict[str, float] = {}
        divergences: dict[str, float] = {}
        if not sampled:  # all of this rank's groups are gone, but not those of another
            return priorities, divergences
        # Somebody else's tokens have no ratio.
        log_ratios = np.where([row.foreign for row in prepared.rows], 0.0, result.log_ratios)
        cuts = np.cumsum([len(group) for _, group in sampled])[:-1]
        parts = zip(sampled, np.split(prepared.advantages, cuts), np.split(log_ratios, cuts), strict=True)
        errors = iter(prepared.td_errors)
        for (entry, group), values, part in parts:
            if entry.uses == 0:
                self._prioritizer.fresh(values, group.returns)  # its returns become part of what later ones are judged by
            priorities[group.group_id] = self._prioritizer.trained(
                values,
                group.returns,
                ratios=np.exp(part),
                td_errors=np.concatenate([next(errors) for _ in group.trajectories]) if prepared.td_errors else None,
            )
            divergences[group.group_id] = divergence(part, np.array([member.foreign for member in group.trajectories]))
        return priorities, divergences

    def _replay_metrics(self, plan: SamplePlan) -> dict[str, float]:
        entries = plan.entries
        return {
            "replay/staleness": float(np.mean([staleness(self._version, entry.version) for entry in entries])),
            "replay/uses": float(np.mean([entry.uses for entry in entries])),
            "replay/priority": float(np.mean([entry.priority for entry in entries])),
            "replay/is_weight": float(np.mean([entry.is_weight for entry in entries])),
            "replay/fresh_fraction": float(np.mean([entry.uses == 0 for entry in entries])),
        }
