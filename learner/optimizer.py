"""GatedAdamW: AdamW that asks before each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cacherl.learner_settings import LearnerSection


class GatedAdamW(torch.optim.AdamW):
    """AdamW (arXiv 1711.05101) whose step is taken only if `gate` agrees.

    DeepSpeed reduces the gradients and measures their norm inside its own step, just before it calls the optimizer's:
    the gate is the one place where every ZeRO stage knows the gradient and has not used it yet.
    """

    gate: Callable[[], bool] | None = None

    def step(self, closure: Any = None) -> Any:
        """Take the step, or leave parameters and moments alone if the gate is shut."""
        if self.gate is not None and not self.gate():
            return None
        return super().step(closure)

    def reset(self) -> None:
        """Forget moments and step counts, as if no step had been taken; the tensors stay where ZeRO put them."""
        for state in self.state.values():
            for value in state.values():
                if torch.is_tensor(value):
                    value.zero_()


def build_optimizer(model: nn.Module, settings: LearnerSection, *, lr: float) -> GatedAdamW:
    """AdamW over the trainable parameters; norms and biases (one dimension) are not decayed."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trainable if parameter.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [parameter for parameter in trainable if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    # One kernel over all parameters: a loop of a dozen small ones per parameter is slow for small models.
    filled = [group for group in groups if group["params"]]
    return GatedAdamW(filled, lr=lr, betas=settings.betas, eps=settings.adam_epsilon, fused=True)
