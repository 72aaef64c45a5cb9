"""The weight of the KL term follows its target."""

from __future__ import annotations

import pytest

from cacherl.learning_settings import KLSection
from learner.kl import KLCoefficient


def test_without_a_target_it_stays() -> None:
    coefficient = KLCoefficient(KLSection(coef=0.1))
    assert not coefficient.observe(1e6)
    assert coefficient.value == 0.1


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.05, 1.0), (0.055, 1.01), (0.5 * 0.05, 0.98), (0.15, 1.02), (0.201, 2.0), (0.199, 1.02)]
)
def test_it_moves_towards_the_target_and_doubles_on_a_surge(kl: float, factor: float) -> None:
    coefficient = KLCoefficient(KLSection(coef=0.1, target=0.05, surge=4.0))
    assert coefficient.observe(kl) == (factor == 2.0)
    assert coefficient.value == pytest.approx(0.1 * factor)


def test_it_stays_within_its_bounds() -> None:
    coefficient = KLCoefficient(KLSection(coef=0.1, target=0.05, coef_min=0.09, coef_max=0.3))
    for _ in range(10):
        coefficient.observe(10.0)
    assert coefficient.value == 0.3
    for _ in range(100):
        coefficient.observe(0.0)
    assert coefficient.value == 0.09


def test_it_finds_the_weight_that_holds_the_target() -> None:
    coefficient = KLCoefficient(KLSection(coef=0.01, target=0.05, rate=0.5))
    for _ in range(300):
        coefficient.observe(0.01 / coefficient.value)  # the larger the weight, the smaller the KL
    assert coefficient.value == pytest.approx(0.2, rel=0.05)
