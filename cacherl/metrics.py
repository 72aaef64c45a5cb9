"""Metric names with units and reductions, and the sinks they are written to.

A metric is declared once, in the table below or with `declare`; recording an undeclared name is an error, so that every
number a user sees has a unit and a sentence that says what it means.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TextIO

Reduction = Literal["mean", "sum", "max", "min", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A declared metric. A name that ends in '/*' declares a family ('reward/*': one per component)."""

    name: str
    unit: str
    help: str
    reduction: Reduction = "mean"


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


def reduce(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Merge several records into one by each metric's reduction; non-finite values are kept, so that they show."""
    columns: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.items():
            columns.setdefault(name, []).append(float(value))
    return {name: _REDUCERS[lookup(name).reduction](values) for name, values in columns.items()}


_REDUCERS: dict[Reduction, Callable[[list[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan,
    "sum": sum,
    "max": lambda values: math.nan if any(map(math.isnan, values)) else max(values),
    "min": lambda values: math.nan if any(map(math.isnan, values)) else min(values),
    "last": lambda values: values[-1],
}


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
    """Parse the table below: name | unit | reduction | help."""
    cells = ([cell.strip() for cell in row.split("|")] for row in rows.strip().splitlines())
    return [Metric(name=name, unit=unit, reduction=reduction, help=text) for name, unit, reduction, text in cells]  # type: ignore[arg-type]


declare(
    _metrics("""
    time/elapsed               | s             | last | wall-clock since the run began
    time/sample                | s             | mean | learner waiting for a batch from the replay service
    time/update                | s             | mean | one optimizer step, collation included
    time/publish               | s             | mean | gathering weights until every engine acknowledged them
    time/checkpoint            | s             | mean | updates waiting for a checkpoint to be copied, or written if synchronous
    checkpoint/version         | versions      | last | learner version of the newest complete checkpoint
    checkpoint/bytes           | bytes         | last | its size
    checkpoint/seconds         | s             | last | from its begin until it was complete
    eval/success               | fraction      | last | greedy success on held-out tasks
    eval/success/*             | fraction      | last | the same, per level; in a mix also per family
    eval/tool_errors           | calls/episode | last | failed tool calls per held-out episode
    eval/length                | tokens        | last | sampled tokens per held-out episode
    rollout/success            | fraction      | mean | raw outcome of training episodes, those of an explorer left out
    rollout/return             | reward        | mean | total reward of training episodes
    rollout/turns              | turns         | mean | turns per episode
    rollout/sampled_tokens     | tokens        | mean | sampled tokens per episode
    rollout/truncated          | fraction      | mean | episodes ended by a limit
    rollout/failed             | episodes      | sum  | episodes lost to infrastructure
    rollout/tool_errors        | calls/episode | mean | failed tool calls per episode
    rollout/code_ended         | calls/episode | mean | calls whose code the sandbox ended: too long, too large, crashed
    rollout/episodes           | episodes      | last | finished so far
    rollout/tool_calls         | calls         | last | tool calls made so far
    rollout/tokens_per_s       | tokens/s      | last | sampled tokens a second, all actors
    exploration/share          | fraction      | mean | training episodes that the explorer played instead of the policy
    exploration/success        | fraction      | mean | their raw outcome
    curriculum/level           | level         | last | level that most training tasks are drawn from
    curriculum/level/*         | level         | last | the same, per family of a mix
    curriculum/success/*       | fraction      | last | rolling success of fresh training tasks, per level (of each family)
    curriculum/variance/*      | fraction      | last | latest groups whose members differ, per level (of each family)
    curriculum/remembered      | tasks         | last | tasks kept to be played again, because their last group had variance
    curriculum/remembered/*    | tasks         | last | the same, per family of a mix
    rollout/judge_failed       | fraction      | mean | episodes that the reward's judge gave no score
    tool_cache/hit_rate        | fraction      | mean | tool results that were served from the tool-result cache
    tool_cache/live            | fraction      | mean | tool results that the tools themselves gave
    tool_cache/exact           | fraction      | mean | tool results recorded for the same call in the same state
    tool_cache/normalised      | fraction      | mean | tool results recorded for a call of the same normal form, or similar
    tool_cache/best_effort     | fraction      | mean | tool results recorded for the nearest call of the tool in the state
    tool_cache/tool/*          | fraction      | mean | the same, per tool and tier
    reward/*                   | reward        | mean | mean weighted value per episode of a reward component
    reward_weight/*            | reward        | last | weight of a reward component at the moment, schedule included
    reward_batch/mean/*        | reward        | mean | mean of a reward component over the trajectories of the trained batch
    reward_batch/min/*         | reward        | min  | its smallest value in the batch
    reward_batch/max/*         | reward        | max  | its largest value in the batch
    reward_batch/share/*       | fraction      | mean | its share of the batch's reward, penalties counted by their size
    reward_batch/variance_share/* | fraction   | mean | its share of the variance within groups, which makes the gradient
    replay/groups              | groups        | last | groups in the pool
    replay/trajectories        | trajectories  | last | trajectories in the pool
    replay/bytes               | bytes         | last | payload bytes in the pool
    replay/inserted            | trajectories  | last | trajectories accepted so far
    replay/sampled             | trajectories  | last | trajectories handed to the learner so far
    replay/zero_variance       | groups        | last | groups without a gradient so far, never sampled
    replay/evicted             | groups        | last | groups evicted for room so far
    replay/cleared             | groups        | last | groups removed by clear_every so far
    replay/superseded          | groups        | last | groups removed for a newer one of their task so far
    replay/retired             | groups        | last | groups that reached max_uses so far
    replay/stale_refused       | groups        | last | groups too stale when they were pushed, so far
    replay/stale_dropped       | groups        | last | groups that became too stale in the pool, so far
    replay/never_sampled       | groups        | last | groups in the pool that may be sampled and never were
    replay/expired             | batches       | last | leases that ended without an acknowledgement, so far
    replay/late                | batches       | last | acknowledgements that came after that, so far
    replay/push_waits          | attempts      | last | pushes told to wait for the learner, so far
    replay/sample_waits        | attempts      | last | samples told to wait for the actors, so far
    replay/staleness           | versions      | mean | learner version minus sampled version, over the batch
    replay/uses                | uses          | mean | earlier uses of the batch's groups
    replay/priority            | -             | mean | priority of the batch's groups when they were drawn
    replay/is_weight           | -             | mean | importance weight of the batch's groups, 1 without a sampling bias
    replay/fresh_fraction      | fraction      | mean | share of the batch never sampled before
    learner/loss               | loss          | mean | the loss that was minimised
    learner/policy_loss        | loss          | mean | its policy-gradient part
    learner/value_loss         | reward^2      | mean | the critic's clipped loss
    learner/kl                 | nats/token    | mean | estimate of KL to the reference policy
    learner/kl_coef            | 1             | last | its weight in the loss
    learner/kl_surge           | updates       | sum  | updates whose KL was above kl.surge times the target
    learner/entropy            | nats/token    | mean | mean policy entropy on sampled tokens
    learner/grad_norm          | norm          | mean | global gradient norm before clipping
    learner/clip_fraction      | fraction      | mean | sampled tokens whose ratio was clipped
    learner/ratio_mean         | ratio         | mean | mean of policy over behaviour probability
    learner/ratio_max          | ratio         | max  | largest ratio
    learner/drift_kl           | nats/token    | mean | k3 between the policies that sampled the batch and the current one
    learner/good_logprob       | nats/token    | mean | mean log-likelihood of sampled tokens with a positive advantage
    learner/good_log_ratio     | nats/token    | mean | its change since they were sampled
    learner/correction_weight  | 1             | mean | weight of the off-policy correction
    learner/dropped_tokens     | fraction      | mean | tokens that the off-policy correction dropped
    learner/skipped_steps      | steps         | sum  | steps not taken because their gradient was a spike
    learner/ess                | fraction      | mean | effective sample size over number of trajectories
    learner/mismatch_kl        | nats/token    | mean | k3 between engine and learner log-probabilities before the step
    learner/lr                 | 1             | last | learning rate
    learner/tokens             | tokens        | sum  | tokens trained on
    learner/useful_tokens      | fraction      | mean | tokens that are not padding
    learner/version            | versions      | last | optimizer steps since the warm start
    learner/advantage_std      | reward        | mean | standard deviation of the batch's advantages
    alarm/*                    | 1             | last | 1 while the alarm of that name (and of that subject) is raised
    governor/change            | 1             | sum  | the replay governor's decision: 1 more replay, -1 less, 0 as it was
    governor/replay_ratio      | uses          | last | trained per inserted trajectories that it asks for
    governor/update_frequency  | trajectories  | last | new trajectories per update that give this ratio
    warm_start/loss            | nats/token    | mean | negative log-likelihood of demonstrations
    """)
)
