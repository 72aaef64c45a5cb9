"""Matrix products of float32 linear layers through oneDNN instead of MKL, on CPUs.

PyTorch sends float32 products to MKL, which takes a slow path on processors not made by Intel: on an AMD Zen 5 core,
100 GFLOP/s against oneDNN's 240 in the shapes of a small model, forward and backward, at the same float32 accuracy.
PyTorch's own switch (`torch.backends.mkldnn.matmul.fp32_precision`) is no way to get it: it lets oneDNN round to
bfloat16 where the processor can, and it makes the fused attention's many tiny products four times slower.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

#: What `torch.compile` uses for a linear layer on CPU: ``left @ right.T``, fused with nothing.
_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.T`` without a graph: [M, K], [N, K] -> [M, N], any strides."""
    usable = left.dtype == right.dtype == torch.float32 and left.device.type == "cpu" and left.numel()
    if _LINEAR is None or not usable:
        return left @ right.T
    result: Tensor = _LINEAR(left, right, None, "none", [], "")
    return result


class OneDnnLinear(nn.Linear):
    """An `nn.Linear` whose three products go through `product`."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        flat = _Product.apply(input.flatten(0, -2), self.weight)
        output = flat.unflatten(0, input.shape[:-1])
        return output if self.bias is None else output + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return product(left, right)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        (grad,) = grads
        return (
            product(grad, right.T) if ctx.needs_input_grad[0] else None,
            outer(grad, left) if ctx.needs_input_grad[1] else None,
        )


def outer(grad: Tensor, hidden: Tensor) -> Tensor:
    """``grad.T @ hidden``, a weight's gradient: [M, N], [M, K] -> [N, K]."""
    # oneDNN is faster with the longer side of the result first.
    if grad.shape[1] >= hidden.shape[1]:
        return product(hidden.T, grad.T).T
    return product(grad.T, hidden.T)


def use_onednn(model: nn.Module) -> None:
    """Turn the linear layers of `model` into `OneDnnLinear`, in place; parameters and names stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear
