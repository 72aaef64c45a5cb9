"""PolicyEngine: one rank's share of a model under DeepSpeed. The only module that imports deepspeed."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import numpy.typing as npt
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from torch import Tensor

from cacherl.errors import NotFiniteError
from cacherl.learner_settings import LearnerSection
from learner.batch import MicroBatch
from learner.gradient_guard import GradientGuard
from learner.lora import without_adapter
from learner.optimizer import build_optimizer
from learner.policy_model import load_policy

logger = logging.getLogger(__name__)

#: Elements that one collective gathers when partitioned weights are published.
GATHER_ELEMENTS = 1 << 27
_SHM_OP = "deepspeed_shm_comm"
#: Objects in the states of DeepSpeed's optimizers that follow from the settings.
_NOT_PLAIN = frozenset({"loss_scaler", "param_slice_mappings", "zero_stage", "universal_checkpoint_info"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of one learner group meet.

    Attributes:
        rank, world: this process among all.
        address, port: of rank 0.
        timeout_s: seconds after which a collective that some rank does not join fails.
    """

    rank: int = 0
    world: int = 1
    address: str = "127.0.0.1"
    port: int
    timeout_s: float = 1800.0


def join(rendezvous: Rendezvous, device: torch.device) -> None:
    """Enter the process group: NCCL between GPUs, gloo between CPUs."""
    os.environ.update(
        RANK=str(rendezvous.rank),
        WORLD_SIZE=str(rendezvous.world),
        LOCAL_RANK=str(device.index or 0),
        MASTER_ADDR=rendezvous.address,
        MASTER_PORT=str(rendezvous.port),
    )
    # DeepSpeed would compile a shared-memory all-reduce, which needs a compiler and 10 s, and gloo does the same work.
    deepspeed.ops.__compatible_ops__[_SHM_OP] = False
    deepspeed.init_distributed(
        dist_backend="nccl" if device.type == "cuda" else "gloo",
        auto_mpi_discovery=False,
        timeout=timedelta(seconds=rendezvous.timeout_s),
        verbose=False,
    )


class PolicyEngine:
    """Forward, backward and optimizer steps of one rank; every method but `forward` is a collective of all ranks.

    Gradients are exactly those of the sum of all losses passed to `backward`, over micro-batches and ranks, between two
    steps. Under ZeRO 2 and 3 every rank must call `forward` and `backward` equally often (`needs_equal_counts`).

    Args:
        directory: Hugging Face folder of the initial weights.
        settings: stage, offloading, activation checkpointing, optimizer and clipping.
        lr: the first learning rate.
        critic: the model has a value head.

    Attributes:
        skipped: the last step was not taken, because its gradient was a spike.
    """

    def __init__(
        self,
        directory: Path,
        settings: LearnerSection,
        *,
        dtype: torch.dtype,
        lr: float,
        device: torch.device,
        world: int,
        critic: bool = False,
    ) -> None:
        model = load_policy(directory, dtype, settings.lora, critic=critic)
        if settings.activation_checkpointing:
            # Recomputing under ZeRO 3 finds other shapes than were saved, which only the reentrant kind does not look at.
            model.recompute_activations(reentrant=settings.zero_stage == 3)
        self.device = device
        self.world = world
        # DeepSpeed sums the gradients of bfloat16 weights in float32 from stage 1 on only.
        self._stage = settings.zero_stage if dtype == torch.float32 else max(settings.zero_stage, 1)
        self._adapted = settings.lora.rank > 0
        self._max_norm = settings.max_grad_norm
        # DeepSpeed clips by itself except at stage 0, where it reports no norm: there the gate below does.
        self._clips = self._stage == 0
        self._norm = math.nan
        self._guard = GradientGuard(settings.grad_spike)
        self.skipped = False
        self._optimizer = build_optimizer(model, settings, lr=lr)
        self._optimizer.gate = self._before_step
        config = _deepspeed_config(settings, dtype, self._stage, sum(parameter.numel() for parameter in model.parameters()))
        self._engine, *_ = deepspeed.initialize(model=model, optimizer=self._optimizer, config=config, dist_init_required=False)

    @property
    def needs_equal_counts(self) -> bool:
        """Whether every rank must run the same number of micro-batches, because each one is a collective."""
        return self._stage >= 2

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(log-probabilities, entropies) of the trained tokens, float32 [S] each, with a graph unless in `no_grad`."""
        logprobs, entropies, values = self.evaluate(batch)
        # Every parameter takes part in every pass, or the ranks' reductions would not match.
        return logprobs if values is None else logprobs + 0 * values, entropies

    def evaluate(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """`forward`, and the critic's values before the trained tokens, float32 [S]; None without one."""
        logprobs, entropies, *values = self._engine(batch)
        return logprobs, entropies, values[0] if values else None

    def reference(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """As `forward`, of the weights that a LoRA adapter stands beside, in `no_grad`."""
        with without_adapter(self._engine.module):
            return self.forward(batch)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to what the next step uses."""
        # DeepSpeed averages over ranks; the losses are shares of one batch and must be summed.
        self._engine.backward(loss * self.world)

    def step(self, lr: float) -> float:
        """Reduce the gradients, clip them and update the weights, unless the gradient is a spike (`skipped`).

        Returns:
            The global gradient norm before clipping.

        Raises:
            NotFiniteError: the gradient is not finite; the weights are those before the step.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        norm = self._norm if self._clips else float(self._engine.get_global_grad_norm())
        if not math.isfinite(norm):
            raise NotFiniteError("the gradient is not finite; the weights are those before this step")
        self.skipped = not self._guard.allows(norm)
        self._guard.record(norm)
        return norm

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments, as at the change from supervised to reinforcement learning."""
        self._optimizer.reset()
        self._guard.reset()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state of this rank, master weights and partitioned weights included, and a whole adapter or critic.

        The other weights that every rank holds whole (ZeRO 0 to 2) are not in it: they are those of `full_weights`.
        """
        state = self._engine.optimizer.state_dict()
        return {
            "optimizer": {key: value for key, value in state.items() if key not in _NOT_PLAIN},
            "weights": self._engine.module.private_weights() if self._stage < 3 else {},
            "guard": self._guard.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what the same rank of an engine with the same settings had; `load_weights` comes first."""
        self._engine.module.load_private_weights(state["weights"])
        self._guard.load_state_dict(state["guard"])
        optimizer, saved = self._engine.optimizer, dict(state["optimizer"])
        if optimizer is self._optimizer:
            optimizer.load_state_dict(saved)
        else:
            if hasattr(optimizer, "loss_scaler"):
                saved["loss_scaler"] = optimizer.loss_scaler
            # A list over ranks, of which DeepSpeed reads this rank's entry.
            optimizer.load_state_dict([saved] * self.world, load_optimizer_states=True, load_from_fp32_weights=True)

    @property
    def holds_weights(self) -> bool:
        """Whether `state_dict` holds what was trained, because it is spread over ranks or an adapter."""
        return self._stage == 3 or self._adapted

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy whole weights, named as in `full_weights`, into the model, whose `state_dict` does not hold them."""
        self._engine.module.load_weights(weights)

    def train(self, mode: bool) -> None:
        """Switch dropout and the like on or off."""
        self._engine.train(mode)

    def full_weights(self, *, all_ranks: bool = False) -> dict[str, Tensor] | None:
        """Checkpoint name -> a copy of the whole weight on the CPU, an adapter merged into it; on rank 0, and None elsewhere
        unless `all_ranks`."""
        keep = all_ranks or torch.distributed.get_rank() == 0
        named = self._engine.module.named_weights()
        copies: dict[str, Tensor] = {}
        for bucket in _buckets(named):
            with _gathered([named[name] for name in bucket]):
                if keep:
                    copies.update({name: named[name].detach().to("cpu", copy=True) for name in bucket})
        return self._engine.module.published(copies) if keep else None

    def add_up(self, values: Tensor) -> Tensor:
        """`values` summed over ranks, in place."""
        if self.world > 1:
            torch.distributed.all_reduce(values)
        return values

    def maximum(self, values: Tensor) -> Tensor:
        """The elementwise maximum of `values` over ranks, in place."""
        if self.world > 1:
            torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
        return values

    def gather(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The one-dimensional arrays of all ranks, in rank order, on every rank."""
        if self.world == 1:
            return values
        rank = torch.distributed.get_rank()
        counts = torch.zeros(self.world, dtype=torch.int64, device=self.device)
        counts[rank] = len(values)
        ends = np.cumsum(self.add_up(counts).tolist())
        joined = torch.zeros(int(ends[-1]), dtype=torch.float64, device=self.device)
        joined[ends[rank] - len(values) : ends[rank]] = torch.from_numpy(values).to(self.device)
        return self.add_up(joined).cpu().numpy()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Leave the process group."""
        self._engine.destroy()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def _before_step(self) -> bool:
        if self._clips:
            norm = torch.nn.utils.clip_grad_norm_(self._engine.module.parameters(), self._max_norm)
            self._norm = float(norm)
            return self._guard.allows(self._norm)
        # Set by DeepSpeed's own optimizer just before it calls ours, once per step or once per partition of it.
        return self._guard.allows(float(self._engine.optimizer._global_grad_norm))


@contextmanager
def _gathered(parameters: Sequence[Any]) -> Iterator[None]:
    """Partitioned parameters whole, by one collective for all of them.

    `deepspeed.zero.GatheredParameters` starts one per parameter.
    """
    away = [one for one in parameters if getattr(one, "ds_status", None) == ZeroParamStatus.NOT_AVAILABLE]
    if away:
        away[0].all_gather_coalesced(away).wait()
    try:
        yield
    finally:
        if away:
            away[0].partition(param_list=away, has_been_updated=False)


def _buckets(named: dict[str, Tensor]) -> list[list[str]]:
    """Names in order, cut into runs of at most `GATHER_ELEMENTS` elements."""
    buckets: list[list[str]] = []
    filled = GATHER_ELEMENTS
    for name, value in named.items():
        size = getattr(value, "ds_numel", value.numel())
        if filled + size > GATHER_ELEMENTS:
            buckets.append([])
            filled = 0
        buckets[-1].append(name)
        filled += size
    return buckets


def _deepspeed_config(settings: LearnerSection, dtype: torch.dtype, stage: int, parameters: int) -> dict[str, Any]:
    bucket = min(parameters + parameters % 2, 500_000_000)  # DeepSpeed wants an even number
    half = dtype == torch.bfloat16
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # Any number of backward passes belongs to one step; micro-batches are cut by tokens, not by count.
        "managed_gradient_accumulation": False,
        "gradient_clipping": settings.max_grad_norm if stage else 0.0,
        "bf16": {"enabled": half},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,
            # The defaults allocate buffers for half a billion elements, whatever the model's size.
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_prefetch_bucket_size": min(bucket, 50_000_000),
            # Weights below this size stay whole on every rank; the default would be all of a small model.
            "stage3_param_persistence_threshold": min(100_000, parameters // 100),
        },
        # Ours runs on whatever device the state is on; DeepSpeed's own CPU optimizer would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
        "timers": {"throughput": {"enabled": False}},
        "steps_per_print": None,
    }
    if settings.offload != "none":
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    if settings.offload == "all":
        config["zero_optimization"]["offload_param"] = {"device": "cpu"}
    if half:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config
