"""Metric names with units and meanings, and the sinks they are written to.

A metric is declared once, in the table below or with `declare`; recording an undeclared name is an error, so that every
number a user sees has a unit and a sentence that says what it means.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A declared metric. A name that ends in '/*' declares a family ('reward/*': one per component)."""

    name: str
    unit: str
    help: str


class MetricSink(Protocol):
    """Somewhere metrics go."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` at optimizer step `step`."""

    def close(self) -> None:
        """Flush and release."""


_DECLARED: dict[str, Metric] = {}


def declare(metrics: Iterable[Metric]) -> None:
    """Register metrics.

    Raises:
        ValueError: a name is already declared differently.
    """
    for metric in metrics:
        known = _DECLARED.setdefault(metric.name, metric)
        if known != metric:
            raise ValueError(f"metric {metric.name!r} is declared twice: {known} and {metric}")


def lookup(name: str) -> Metric:
    """The declaration behind `name`, by itself or by its family.

    Raises:
        KeyError: nothing declares it.
    """
    if name in _DECLARED:
        return _DECLARED[name]
    parts = name.split("/")
    for cut in range(len(parts) - 1, 0, -1):
        family = "/".join(parts[:cut]) + "/*"
        if family in _DECLARED:
            return _DECLARED[family]
    raise KeyError(f"metric {name!r} is not declared in cacherl/metrics.py")


class JsonlSink:
    """One JSON object a line: {"step": int, "time": unix seconds, name: value, ...}; non-finite values become null.

    Args:
        resume_after: the file's records of later steps, and a line that was cut short, are dropped first: those steps will be
            made again. None keeps everything.
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume_after is not None and path.exists():
            drop_later_records(path, "step", resume_after)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        clean = {name: (value if math.isfinite(value) else None) for name, value in values.items()}
        self._file.write(json.dumps({"step": step, "time": time.time(), **clean}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def drop_later_records(path: Path, key: str, last: int) -> None:
    """Rewrite a file of JSON lines without those whose `key` exceeds `last`, and without a line that was cut short."""
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            if json.loads(line)[key] <= last:
                kept.append(line + "\n")
        except json.JSONDecodeError:
            continue  # cut short when the writer was killed
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(kept), "utf-8")
    partial.replace(path)


class TensorBoardSink:
    """Scalars under the metric's own name, for `tensorboard --logdir`.

    Args:
        resume_after: events of later steps, from an earlier session, are no longer shown. None keeps everything.
    """

    def __init__(self, directory: Path, *, resume_after: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=None if resume_after is None else resume_after + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MetricWriter:
    """Checks names and fans records out to sinks; a context manager."""

    def __init__(self, sinks: Iterable[MetricSink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` at `step`.

        Raises:
            KeyError: a name is not declared.
        """
        for name in values:
            lookup(name)
        for sink in self._sinks:
            sink.write(step, values)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _metrics(rows: str) -> list[Metric]:
    """Parse the table below: name | unit | help."""
    cells = ([cell.strip() for cell in row.split("|")] for row in rows.strip().splitlines())
    return [Metric(name=name, unit=unit, help=text) for name, unit, text in cells]


declare(
    _metrics("""
    time/elapsed               | s             | wall-clock since the run began
    time/sample                | s             | learner waiting for a batch from the replay service
    time/update                | s             | one optimizer step, collation included
    time/publish               | s             | gathering weights until every engine acknowledged them
    time/checkpoint            | s             | updates waiting for a checkpoint to be copied, or written if synchronous
    checkpoint/version         | versions      | learner version of the newest complete checkpoint
    checkpoint/bytes           | bytes         | its size
    checkpoint/seconds         | s             | from its begin until it was complete
    eval/success               | fraction      | greedy success on held-out tasks
    eval/success/*             | fraction      | the same, per level; in a mix also per family
    eval/tool_errors           | calls/episode | failed tool calls per held-out episode
    eval/length                | tokens        | sampled tokens per held-out episode
    rollout/success            | fraction      | raw outcome of training episodes, those of an explorer left out
    rollout/return             | reward        | total reward of training episodes
    rollout/turns              | turns         | turns per episode
    rollout/sampled_tokens     | tokens        | sampled tokens per episode
    rollout/truncated          | fraction      | episodes ended by a limit
    rollout/failed             | episodes      | episodes lost to a fault of engine, environment or explorer
    rollout/tool_errors        | calls/episode | failed tool calls per episode
    rollout/code_ended         | calls/episode | calls whose code the sandbox ended: too long, too large, crashed
    rollout/episodes           | episodes      | finished so far
    rollout/tool_calls         | calls         | tool calls made so far
    rollout/tokens_per_s       | tokens/s      | sampled tokens a second since the last update, all actors
    exploration/share          | fraction      | training episodes that the explorer played instead of the policy
    exploration/success        | fraction      | their raw outcome
    curriculum/level           | level         | level that most training tasks are drawn from
    curriculum/level/*         | level         | the same, per family of a mix
    curriculum/success/*       | fraction      | rolling success of fresh training tasks, per level (of each family)
    curriculum/variance/*      | fraction      | latest groups whose members differ, per level (of each family)
    curriculum/remembered      | tasks         | tasks kept to be played again, because their last group had variance
    curriculum/remembered/*    | tasks         | the same, per family of a mix
    rollout/judge_failed       | fraction      | episodes that the reward's judge gave no score
    tool_cache/hit_rate        | fraction      | tool results that were served from the tool-result cache
    tool_cache/live            | fraction      | tool results that the tools themselves gave
    tool_cache/exact           | fraction      | tool results recorded for the same call in the same state
    tool_cache/normalised      | fraction      | tool results recorded for a call of the same normal form, or similar
    tool_cache/best_effort     | fraction      | tool results recorded for the nearest call of the tool in the state
    tool_cache/tool/*          | fraction      | the same, per tool and tier
    reward/*                   | reward        | mean weighted value per episode of a reward component
    reward_weight/*            | reward        | weight of a reward component at the moment, schedule included
    reward_batch/mean/*        | reward        | mean of a reward component over the trajectories of the trained batch
    reward_batch/min/*         | reward        | its smallest value in the batch
    reward_batch/max/*         | reward        | its largest value in the batch
    reward_batch/share/*       | fraction      | its share of the batch's reward, penalties counted by their size
    reward_batch/variance_share/* | fraction   | its share of the variance within groups, which makes the gradient
    replay/groups              | groups        | groups in the pool
    replay/trajectories        | trajectories  | trajectories in the pool
    replay/bytes               | bytes         | payload bytes in the pool
    replay/inserted            | trajectories  | trajectories accepted so far
    replay/sampled             | trajectories  | trajectories handed to the learner so far
    replay/zero_variance       | groups        | groups without a gradient so far, never sampled
    replay/evicted             | groups        | groups evicted for room so far
    replay/cleared             | groups        | groups removed by clear_every so far
    replay/superseded          | groups        | groups removed for a newer one of their task so far
    replay/retired             | groups        | groups that reached max_uses so far
    replay/stale_refused       | groups        | groups too stale when they were pushed, so far
    replay/stale_dropped       | groups        | groups that became too stale in the pool, so far
    replay/never_sampled       | groups        | groups in the pool that may be sampled and never were
    replay/expired             | batches       | leases that ended without an acknowledgement, so far
    replay/late                | batches       | acknowledgements that came after that, so far
    replay/push_waits          | attempts      | pushes told to wait for the learner, so far
    replay/sample_waits        | attempts      | samples told to wait for the actors, so far
    replay/staleness           | versions      | learner version minus sampled version, over the batch
    replay/uses                | uses          | earlier uses of the batch's groups
    replay/priority            | -             | priority of the batch's groups when they were drawn
    replay/is_weight           | -             | importance weight of the batch's groups, 1 without a sampling bias
    replay/fresh_fraction      | fraction      | share of the batch never sampled before
    learner/loss               | loss          | the loss that was minimised
    learner/policy_loss        | loss          | its policy-gradient part
    learner/value_loss         | reward^2      | the critic's clipped loss
    learner/kl                 | nats/token    | estimate of KL to the reference policy
    learner/kl_coef            | 1             | its weight in the loss
    learner/kl_surge           | updates       | updates whose KL was above kl.surge times the target
    learner/entropy            | nats/token    | mean policy entropy on sampled tokens
    learner/grad_norm          | norm          | global gradient norm before clipping
    learner/clip_fraction      | fraction      | sampled tokens whose ratio was clipped
    learner/ratio_mean         | ratio         | mean of policy over behaviour probability
    learner/ratio_max          | ratio         | largest ratio
    learner/drift_kl           | nats/token    | k3 between the policies that sampled the batch and the current one
    learner/good_logprob       | nats/token    | mean log-likelihood of sampled tokens with a positive advantage
    learner/good_log_ratio     | nats/token    | its change since they were sampled
    learner/correction_weight  | 1             | weight of the off-policy correction
    learner/dropped_tokens     | fraction      | tokens that the off-policy correction dropped
    learner/skipped_steps      | steps         | steps not taken because their gradient was a spike
    learner/ess                | fraction      | effective sample size over number of trajectories
    learner/mismatch_kl        | nats/token    | k3 between engine and learner log-probabilities before the step
    learner/lr                 | 1             | learning rate
    learner/tokens             | tokens        | tokens trained on
    learner/useful_tokens      | fraction      | tokens that are not padding
    learner/version            | versions      | optimizer steps since the warm start
    learner/advantage_std      | reward        | standard deviation of the batch's advantages
    alarm/*                    | 1             | 1 while the alarm of that name (and of that subject) is raised
    governor/change            | 1             | the replay governor's decision: 1 more replay, -1 less, 0 as it was
    governor/replay_ratio      | uses          | trained per inserted trajectories that it asks for
    governor/update_frequency  | trajectories  | new trajectories per update that give this ratio
    warm_start/loss            | nats/token    | negative log-likelihood of demonstrations
    """)
)
