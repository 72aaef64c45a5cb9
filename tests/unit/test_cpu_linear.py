"""oneDNN products against float64, gradients included."""

from __future__ import annotations

import pytest
import torch

from learner.cpu_linear import OneDnnLinear, outer, product, use_onednn


@pytest.mark.parametrize(("rows", "inner", "columns"), [(7, 33, 129), (1, 8, 8), (300, 128, 384), (0, 8, 4)])
def test_products_equal_float64(rows: int, inner: int, columns: int) -> None:
    torch.manual_seed(0)
    left, right, grad = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(rows, columns)
    exact = left.double() @ right.double().T
    torch.testing.assert_close(product(left, right).double(), exact, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(outer(grad, left).double(), grad.double().T @ left.double(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(product(grad, right.T).double(), grad.double() @ right.double(), atol=1e-4, rtol=1e-5)


def test_other_types_fall_back() -> None:
    left, right = torch.randn(3, 4).bfloat16(), torch.randn(5, 4).bfloat16()
    assert torch.equal(product(left, right), left @ right.T)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_equals_the_one_that_it_replaces(bias: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9, bias=bias), torch.nn.GELU(), torch.nn.Linear(9, 3, bias=bias))
    exact = torch.nn.Sequential(torch.nn.Linear(6, 9, bias=bias), torch.nn.GELU(), torch.nn.Linear(9, 3, bias=bias)).double()
    exact.load_state_dict(model.state_dict())
    names = list(model.state_dict())
    use_onednn(model)
    assert isinstance(model[0], OneDnnLinear)
    assert list(model.state_dict()) == names
    inputs = torch.randn(2, 5, 6, requires_grad=True)
    wide = inputs.detach().double().requires_grad_()
    (model(inputs) ** 2).sum().backward()
    (exact(wide) ** 2).sum().backward()
    torch.testing.assert_close(inputs.grad.double(), wide.grad, atol=1e-5, rtol=1e-4)
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, atol=1e-5, rtol=1e-4)
