"""The whole path with the real engine, server and learner in float32: tokens, masks, log-probabilities, weights, loss."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.chat import Chat
from actors.pool import ActorPool, PublishedWeights
from actors.report import GroupReport
from actors.worker import WorkerSpec
from cacherl.config import RunConfig, load_config
from cacherl.trajectory import Trajectory, TrajectoryGroup
from deploy.cluster import cluster, reserve
from deploy.priority import FreshPriority
from deploy.tasks import TaskStream, held_out_tasks
from deploy.warm_start import WarmStart, base_model
from envs.base import TaskSource
from envs.registry import load_source
from learner.advantages import group_advantages
from learner.group import LearnerGroup
from replay_service.server import ReplayServer
from replay_service.store import Replay
from support import PROJECT

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

OVERRIDES = [
    "warm_start.updates=120",
    "learner.warm_start_threads=1",  # two would slow each other tenfold beside anything else
    "warm_start.demonstrations=1024",
    "rollout.temperature=0.8",
    "exploration.rate=0.3",
    "exploration.explorer=policy",
    "exploration.temperature=1.4",
    "kl.coef=0.05",
    "eval.tasks=24",
    "replay.importance_sampling=true",
    "replay.update_frequency=0",
    "learner.lr=1e-3",
    "learner.max_grad_norm=1000",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Everything that a run consists of, without its loop."""

    config: RunConfig
    source: TaskSource
    pool: ActorPool
    learner: LearnerGroup
    replay: Replay
    model: Path
    folder: Path

    async def publish(self, version: int) -> None:
        manifest, buffer = await self.learner.publish(version)
        await self.pool.publish(PublishedWeights(manifest=manifest, buffer=buffer))
        self.replay.set_version(version)

    async def sample(self, label: str) -> list[Trajectory]:
        """Sampled episodes of the held-out tasks."""
        return await self.pool.sample(held_out_tasks(self.source, self.config), label)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("loop")
    config = load_config(PROJECT / "deploy/configs/smoke.yaml", [*OVERRIDES, f"warm_start.cache_dir={folder}/cache"])
    source = load_source(config.env)
    async with AsyncExitStack() as resources:
        resources.enter_context(cluster(config, "loop"))
        url = resources.enter_context(ReplayServer(folder / "replay")).url
        replay = resources.enter_context(Replay(url, "loop", config.replay))
        replay.check()
        placement = await reserve(config)
        resources.callback(placement.release)
        model = base_model(config, source, folder / "model")
        learner = LearnerGroup(
            config,
            model=model,
            replay_url=url,
            replay_namespace="loop",
            log_dir=folder,
            ray_namespace="loop",
            placement=placement.learner,
        )
        resources.push_async_callback(learner.close)
        await learner.start()
        await WarmStart(config, source, model).train(learner, lambda done, loss: None)
        spec = WorkerSpec(
            name="actor",
            config=config,
            model=model,
            replay_url=url,
            replay_namespace="loop",
            priority=FreshPriority(config),
            log_file=folder / "actor.log",
        )
        pool = ActorPool(spec, namespace="loop", placement=placement.actors)
        resources.push_async_callback(pool.close)
        await pool.start()
        stack = Stack(config=config, source=source, pool=pool, learner=learner, replay=replay, model=model, folder=folder)
        await stack.publish(0)
        yield stack


async def assert_learner_agrees(stack: Stack, trajectories: list[Trajectory]) -> None:
    """The learner's log-probabilities of the sampled tokens are the stored ones."""
    learned = await stack.learner.token_logprobs(trajectories)
    stored = [trajectory.rollout_logprobs[trajectory.loss_mask] for trajectory in trajectories]
    gap = np.concatenate(learned) - np.concatenate(stored)
    assert np.abs(gap).max() < 1e-4
    assert abs(np.exp(gap).mean() - 1.0) < 1e-4


async def test_fresh_tokens_over_several_turns(stack: Stack) -> None:
    trajectories = await stack.sample("fresh")
    assert len(trajectories) == 24
    assert sum(len(t.turns) > 1 and t.turns[0].messages != () for t in trajectories) > 12
    assert all(t.version_range == (0, 0) for t in trajectories)
    await assert_learner_agrees(stack, trajectories)


async def test_mask_is_true_exactly_on_sampled_tokens(stack: Stack) -> None:
    """Every other token is the prompt or a tool result as the chat template writes it."""
    chat = Chat(AutoTokenizer.from_pretrained(stack.model))
    tasks = held_out_tasks(stack.source, stack.config)
    for task, trajectory in zip(tasks, await stack.sample("mask"), strict=True):
        given = chat.prompt_ids(task.messages)
        assert trajectory.token_ids[: trajectory.prompt_length].tolist() == given
        expected = [False] * len(given)
        for turn in trajectory.turns:
            completion = trajectory.token_ids[slice(*turn.completion)].tolist()
            observation = trajectory.token_ids[slice(*turn.observation)].tolist()
            assert chat.text(completion) == turn.text
            assert (completion[-1] == chat.end_of_turn) == (turn.finish_reason == "stop")
            assert observation == (chat.observation_ids(turn.messages) if observation else [])
            expected += [True] * len(completion) + [False] * len(observation)
        assert trajectory.loss_mask.tolist() == expected


async def test_an_evaluation_meets_the_same_noise_every_time(stack: Stack) -> None:
    tasks = held_out_tasks(stack.source, stack.config)
    first, second = [await stack.pool.evaluate(tasks, label) for label in ("one version", "another version")]
    assert sum(episode.tool_errors for episode in first) > 0
    assert [(e.outcome, e.turns, e.tool_errors) for e in first] == [(e.outcome, e.turns, e.tool_errors) for e in second]


async def filled(stack: Stack, groups: int) -> None:
    """Let the actors fill the pool."""
    stream = TaskStream(stack.source, stack.config, prefix=f"loop-{stack.replay.stats().inserted}")
    enough = asyncio.Event()

    def on_report(report: GroupReport) -> None:
        if stack.replay.stats().eligible >= groups:
            enough.set()

    rollout = asyncio.create_task(stack.pool.rollout(stream, on_report))
    try:
        await asyncio.wait_for(enough.wait(), 60)
    finally:
        rollout.cancel()
        await asyncio.gather(rollout, return_exceptions=True)


def reference(model: torch.nn.Module, groups: list[TrajectoryGroup], weights: list[float], config: RunConfig) -> torch.Tensor:
    """GRPO's loss in float64 for the first update from `model`, which is the policy and the KL reference at once: the clipped
    ratio against the stored log-probabilities, one mean over all sampled tokens, importance weights per group."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for group, weight in zip(groups, weights, strict=True):
        returns = np.array([m.total_reward for m in group.trajectories])
        advantages = (returns - returns.mean()) / (returns.std() + config.advantage.epsilon)
        for member, advantage in zip(group.trajectories, advantages, strict=True):
            ids = torch.tensor(member.token_ids.tolist())
            logits = model(ids[None]).logits[0, :-1].double() / member.temperature
            logp = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0][torch.tensor(member.loss_mask[1:])]
            ratio = torch.exp(logp - torch.tensor(member.rollout_logprobs[member.loss_mask], dtype=torch.float64))
            clipped = ratio.clamp(1 - config.loss.clip_low, 1 + config.loss.clip_high)
            surrogate = torch.minimum(ratio * advantage, clipped * advantage)
            difference = logp - logp.detach()
            kl = torch.exp(-difference) + difference - 1
            total = total + (weight * -surrogate + config.kl.coef * kl).sum()
            tokens += len(logp)
    return total / tokens


async def test_update_publish_and_the_loss_against_a_plain_reference(stack: Stack) -> None:
    await filled(stack, groups=12)
    await stack.learner.save(stack.folder / "before")
    plan = stack.replay.sample("batch-1", 4)
    groups = stack.replay.fetch([entry.group_id for entry in plan.entries])
    assert all(group is not None and len(group) == 4 for group in groups)
    for group in groups:
        assert abs(group_advantages(group.returns, normalize_std=True, epsilon=1e-6).sum()) < 1e-9
        assert 0.8 in {member.temperature for member in group.trajectories}
    # Of an explorer at another temperature too, the engine's log-probabilities are what the learner computes.
    assert {member.temperature for group in groups for member in group.trajectories} == {0.8, 1.4}

    stats = await stack.learner.update("batch-1")
    assert sorted(itertools.chain(*stats.group_ids)) == sorted(entry.group_id for entry in plan.entries)
    assert stats.metrics["learner/mismatch_kl"] < 1e-8
    assert abs(stats.metrics["learner/ratio_mean"] - 1.0) < 1e-4
    model = AutoModelForCausalLM.from_pretrained(stack.folder / "before", dtype=torch.float64)
    loss = reference(model, groups, [entry.is_weight for entry in plan.entries], stack.config)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert stats.metrics["learner/loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert stats.metrics["learner/grad_norm"] == pytest.approx(float(norm), rel=1e-3)

    before = await stack.sample("before the publish")
    assert all(t.version_range == (0, 0) for t in before)
    await stack.publish(1)
    after = await stack.sample("after the publish")
    assert all(t.version_range == (1, 1) for t in after)
    await assert_learner_agrees(stack, after)
    learned = await stack.learner.token_logprobs(before)
    stored = [t.rollout_logprobs[t.loss_mask] for t in before]
    assert np.abs(np.concatenate(learned) - np.concatenate(stored)).max() > 1e-3, "the update changed nothing"
