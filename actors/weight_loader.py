"""The end of the weight path inside a vLLM worker process: map the staged file and reload the model from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from actors.weights import SharedMemoryUpdate


@dataclass
class SharedMemoryInitInfo(WeightTransferInitInfo):
    """Nothing needs to be agreed on beforehand."""


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    """`update`: fields of `SharedMemoryUpdate`."""

    update: dict[str, Any] = field(default_factory=dict)


class SharedMemoryWeightTransferEngine(WeightTransferEngine[SharedMemoryInitInfo, SharedMemoryUpdateInfo]):
    """vLLM's weight-transfer interface over a memory-mapped file, on CPU and on GPU, at any tensor-parallel size."""

    init_info_cls = SharedMemoryInitInfo
    update_info_cls = SharedMemoryUpdateInfo

    def init_transfer_engine(self, init_info: SharedMemoryInitInfo) -> None:
        """No rendezvous: every update names its file."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one version. Overridden because the base class synchronises an accelerator that may not exist."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        self.model.load_weights(SharedMemoryUpdate(**update_info.update).tensors())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        _refresh_tied_heads(self.model)

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def _refresh_tied_heads(model: torch.nn.Module) -> None:
    """Redo the output heads that share the embedding's weight.

    Layerwise reloading processes the module that a weight was loaded into. A tied head receives none, so what vLLM derived from
    its old weight (on CPU a repacked copy for the matrix product) would go on producing the old model's logits.
    """
    for head in model.modules():
        if isinstance(head, ParallelLMHead) and isinstance(head.quant_method, QuantizeMethodBase):
            head.quant_method.process_weights_after_loading(head)
