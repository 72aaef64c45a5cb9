"""Chunked token scores against plain float64 log_softmax, gradients included."""

from __future__ import annotations

import pytest
import torch

from learner import logprobs
from learner.logprobs import ScoringHead

TOKENS, HIDDEN, VOCABULARY = 23, 8, 37


def reference(
    hidden: torch.Tensor, linear: torch.nn.Linear, targets: torch.Tensor, inverse: torch.Tensor
) -> list[torch.Tensor]:
    logits = (hidden @ linear.weight.T + (0 if linear.bias is None else linear.bias)) * inverse[:, None]
    log_p = logits.log_softmax(-1)
    return [log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk_rows", [1, 5, 1000])
@pytest.mark.parametrize("used", [(1, 1), (1, 0), (0, 1)])
def test_scores_and_gradients(bias: bool, chunk_rows: int, used: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk_rows * VOCABULARY)
    torch.manual_seed(0)
    linear = torch.nn.Linear(HIDDEN, VOCABULARY, bias=bias)
    exact = torch.nn.Linear(HIDDEN, VOCABULARY, bias=bias).double()
    exact.load_state_dict({name: value.double() for name, value in linear.state_dict().items()})
    head = ScoringHead(linear)
    hidden = torch.randn(TOKENS, HIDDEN)
    targets, inverse = torch.randint(VOCABULARY, (TOKENS,)), torch.rand(TOKENS) + 0.5
    weights = [factor * torch.randn(TOKENS, dtype=torch.float64) for factor in used]

    mine = hidden.clone().requires_grad_()
    scores = head(mine, targets, inverse)
    sum(
        ((score * weight).sum() for score, weight, use in zip(scores, weights, used, strict=True) if use), torch.zeros(())
    ).backward()
    theirs = hidden.double().requires_grad_()
    expected = reference(theirs, exact, targets, inverse.double())
    sum((value * weight).sum() for value, weight in zip(expected, weights, strict=True)).backward()

    for score, value in zip(scores, expected, strict=True):
        torch.testing.assert_close(score.double(), value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.grad.double(), theirs.grad, atol=1e-5, rtol=1e-5)
    for name, parameter in exact.named_parameters():
        torch.testing.assert_close(head.get_parameter(name).grad.double(), parameter.grad, atol=1e-5, rtol=1e-5)


def test_bfloat16_scores_are_float32_of_the_same_logits() -> None:
    torch.manual_seed(0)
    head = ScoringHead(torch.nn.Linear(HIDDEN, VOCABULARY, bias=False).bfloat16())
    hidden = torch.randn(TOKENS, HIDDEN).bfloat16()
    targets = torch.randint(VOCABULARY, (TOKENS,))
    score, entropy = head(hidden, targets, torch.ones(TOKENS))
    logits = torch.nn.functional.linear(hidden, head.weight).float()
    assert score.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(score, logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0], atol=1e-5, rtol=1e-5)


def test_no_position_gives_zero_gradients_and_no_nan() -> None:
    head = ScoringHead(torch.nn.Linear(HIDDEN, VOCABULARY, bias=False))
    hidden = torch.randn(4, HIDDEN, requires_grad=True)
    score, _ = head(hidden[:0], torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    score.sum().backward()
    assert hidden.grad.abs().sum() == 0
    assert head.weight.grad.abs().sum() == 0
