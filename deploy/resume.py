"""Which settings may change when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from cacherl.config import RunConfig
from cacherl.errors import ConfigError

#: Sections and keys that neither the weights nor the optimizer's state depends on, nor what the pool holds, which is re-scored
#: when the reward has changed.
_FREE = (
    "run.name",
    "run.dir",
    "run.if_exists",
    "run.updates",
    "run.stop_at_success",
    "run.deadline_s",
    "rollout.episode_timeout_s",
    "rollout.max_retries",
    "rollout.max_failed_groups",
    "actors",
    "reward",
    "kl.coef",
    "loss",
    "correction",
    "governor",
    "alarms",
    "learner.cpus_per_worker",
    "learner.threads",
    "learner.warm_start_threads",
    "learner.micro_batch_tokens",
    "learner.mini_batch_size",
    "learner.gradient_accumulation_steps",
    "learner.packing",
    "learner.grad_spike",
    "learner.lr",
    "learner.max_grad_norm",
    "learner.start_deadline_s",
    "learner.update_deadline_s",
    "warm_start.cache_dir",
    "warm_start.prefill",
    "weights",
    "eval",
    "curriculum",
    "exploration",
    "checkpoint.every",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
    "checkpoint.asynchronous",
    "metrics",
    "ray",
    "replay.username",
    "replay.password_env",
    "replay.ca_file",
    "replay.lease_s",
    "replay.deadline_s",
    "replay.reconnect_s",
    "replay.max_ahead",
    "replay.max_staleness",
    "replay.max_uses",
    "replay.fresh_fraction",
    "replay.freshness_half_life",
    "replay.priority_exponent",
)


def refuse_changes(before: Path, now: RunConfig) -> None:
    """Compare a resumed run's settings with those in its config.yaml.

    Raises:
        ConfigError: names every key whose change would make another run of it, with both values.
    """
    old, new = (dict(_flatten(tree)) for tree in (OmegaConf.to_container(OmegaConf.load(before)), _plain(now)))
    defaults = dict(_flatten(_plain(RunConfig())))
    changed = [
        f"{key}: {old.get(key, defaults.get(key))!r} in {before}, now {new[key]!r}"
        for key in new
        if old.get(key, defaults.get(key)) != new[key] and not _free(key)
    ]
    if bool(now.kl.coef) != bool(old.get("kl.coef", 0.0)):
        changed.append(f"kl.coef: {old.get('kl.coef')!r} in {before}, now {now.kl.coef!r} (0 keeps no reference model)")
    if changed:
        raise ConfigError(
            "run.if_exists=resume cannot change what a run is made of:\n  "
            + "\n  ".join(changed)
            + "\ntake the old values, or begin a new run (run.name=…) from a checkpoint's policy (model.path=…/step-…/policy)"
        )


def _plain(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _free(key: str) -> bool:
    return any(key == free or key.startswith(free + ".") for free in _FREE)


def _flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _flatten(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree
