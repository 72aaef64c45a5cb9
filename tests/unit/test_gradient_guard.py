"""Which gradients are stepped on."""

from __future__ import annotations

import math

from learner.gradient_guard import GradientGuard


def settled(spike: float | None) -> GradientGuard:
    guard = GradientGuard(spike)
    for _ in range(10):
        guard.record(1.0)
    return guard


def test_a_spike_is_refused_once_the_mean_is_known() -> None:
    guard = GradientGuard(4.0)
    assert guard.allows(1e6)
    guard = settled(4.0)
    assert guard.allows(4.0)
    assert not guard.allows(4.01)


def test_what_is_not_finite_is_always_refused() -> None:
    for guard in (GradientGuard(None), settled(4.0)):
        assert not guard.allows(math.nan)
        assert not guard.allows(math.inf)


def test_without_a_limit_every_finite_gradient_is_taken() -> None:
    assert settled(None).allows(1e30)


def test_a_lasting_rise_is_followed() -> None:
    guard = settled(4.0)
    refused = 0
    while not guard.allows(10.0):
        guard.record(10.0)
        refused += 1
    assert 0 < refused < 10


def test_one_spike_does_not_raise_the_limit_much() -> None:
    guard = settled(4.0)
    guard.record(1e9)
    assert not guard.allows(6.0)


def test_reset_forgets() -> None:
    guard = settled(4.0)
    guard.reset()
    assert guard.allows(100.0)


def test_steps_without_a_gradient_do_not_shut_out_the_ones_that_have_one() -> None:
    guard = GradientGuard(5.0)
    for _ in range(20):
        guard.record(0.0)
    assert guard.allows(1e6)
    for _ in range(10):
        guard.record(1.0)
        guard.record(0.0)
    assert guard.allows(4.9)
    assert not guard.allows(5.1)
