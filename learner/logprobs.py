"""Log-probability and entropy of chosen tokens, without all logits in memory at once.

The output layer is the largest matrix product of a small model and its logits the largest tensor of any. Here it is
applied only at the positions that predict a sampled token, a chunk at a time, and its backward pass recomputes the
chunk's logits instead of keeping them: peak memory is one chunk of [chunk, V] float32, not [tokens, V].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learner.cpu_linear import outer, product

#: Logits held at once, in elements. 2**21 float32 are 8 MB, which stays in the last-level cache of a CPU.
CHUNK_ELEMENTS = 1 << 21


class ScoringHead(nn.Module):
    """An output layer that scores tokens instead of returning logits.

    It takes the place of a model's `nn.Linear` output layer and keeps its parameters, so that parameter names, weight
    tying and parameter partitioning (ZeRO 3 gathers by module) stay as they were.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, hidden: Tensor, targets: Tensor, inverse_temperatures: Tensor) -> tuple[Tensor, Tensor]:
        """Score `targets` under ``softmax(logits * inverse_temperature)``.

        Args:
            hidden: [S, H], the last hidden state at the S positions before the targets.
            targets: int64 [S].
            inverse_temperatures: float32 [S].

        Returns:
            (log-probabilities, entropies), both float32 [S], in nats; both differentiable.
        """
        return _Score.apply(hidden, self.weight, self.bias, targets, inverse_temperatures)  # type: ignore[no-any-return]


class _Score(torch.autograd.Function):
    """Chunked ``log_softmax`` and entropy with logits recomputed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, inverse_temperatures: Tensor
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalizers = (
            torch.empty(len(targets), dtype=torch.float32, device=hidden.device) for _ in range(3)
        )
        for part in _chunks(len(targets), len(weight)):
            logits = _logits(hidden[part], weight, bias, inverse_temperatures[part])
            normalizers[part] = torch.logsumexp(logits, dim=-1)
            logprobs[part] = logits.gather(-1, targets[part, None])[:, 0] - normalizers[part]
            probabilities = torch.exp(logits - normalizers[part, None])
            entropies[part] = normalizers[part] - torch.linalg.vecdot(probabilities, logits)
        ctx.save_for_backward(hidden, weight, bias, targets, inverse_temperatures, normalizers, entropies)
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_logprobs, grad_entropies = grads
        hidden, weight, bias, targets, inverse_temperatures, normalizers, entropies = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden)
        trained = ctx.needs_input_grad[1]  # not beside a LoRA adapter
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and ctx.needs_input_grad[2] else None
        for part in _chunks(len(targets), len(weight)):
            logits = _logits(hidden[part], weight, bias, inverse_temperatures[part])
            logits -= normalizers[part, None]
            probabilities = torch.exp(logits)
            # d entropy / d logit_j = -p_j * (log p_j + H);  d log p_t / d logit_j = [j = t] - p_j
            grad = torch.zeros_like(logits)
            if grad_entropies is not None:
                grad -= grad_entropies[part, None] * probabilities * (logits + entropies[part, None])
            if grad_logprobs is not None:
                grad.addcmul_(probabilities, grad_logprobs[part, None], value=-1)
                grad.scatter_add_(-1, targets[part, None], grad_logprobs[part, None])
            grad *= inverse_temperatures[part, None]
            narrow = grad.to(hidden.dtype)
            grad_hidden[part] = product(narrow, weight.T)
            if grad_weight is not None:
                grad_weight += outer(narrow, hidden[part])
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        grads_of_layer = (
            None if grad is None else grad.to(parameter.dtype) for grad, parameter in ((grad_weight, weight), (grad_bias, bias))
        )
        return grad_hidden, *grads_of_layer, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, inverse_temperatures: Tensor) -> Tensor:
    raw = product(hidden, weight)
    return (raw if bias is None else raw + bias).float() * inverse_temperatures[:, None]


def _chunks(count: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, start + size) for start in range(0, count, size)]
