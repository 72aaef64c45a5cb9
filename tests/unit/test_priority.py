"""The priority of a fresh group: the size of its advantages, and nothing where the raw outcomes agree."""

from __future__ import annotations

import pickle

import pytest

from cacherl.learning_settings import AdvantageSection
from deploy.priority import AdvantagePriority
from fakes import group_of, two_turns

CENTRED = AdvantagePriority(settings=AdvantageSection(normalize_std=False))
SCALED = AdvantagePriority(settings=AdvantageSection(normalize_std=True))

#: Outcome 1 returns 1.01, outcome 0 returns 0.01.
GOOD, BAD = two_turns(), two_turns(outcome=0.0, rewards={"final": 0.0})


@pytest.mark.parametrize("outcome", [0.0, 1.0])
@pytest.mark.parametrize("priority", [CENTRED, SCALED])
def test_equal_outcomes_have_no_priority_however_shaped_the_returns(priority: AdvantagePriority, outcome: float) -> None:
    members = [two_turns(outcome=outcome, rewards={"final": outcome, "shaping": extra}) for extra in (0.0, 0.3, -0.2)]
    group = group_of(*members)
    assert len(set(group.returns.tolist())) == 3
    assert priority(group) == 0.0


def test_by_request_the_return_decides() -> None:
    group = group_of(two_turns(), two_turns(rewards={"final": 0.8}))
    assert AdvantagePriority(settings=AdvantageSection(zero_variance="return", normalize_std=False))(group) == pytest.approx(
        0.1
    )
    assert CENTRED(group) == 0.0


def test_by_hand() -> None:
    # One of four succeeds: mean 0.26, deviations 0.75 and three times -0.25, standard deviation sqrt(3)/4.
    group = group_of(GOOD, BAD, BAD, BAD)
    assert CENTRED(group) == pytest.approx((0.75 + 3 * 0.25) / 4)
    assert SCALED(group) == pytest.approx(0.375 / (3**0.5 / 4), rel=1e-5)


def test_half_successful_is_what_an_unscaled_priority_prefers() -> None:
    assert CENTRED(group_of(GOOD, GOOD, BAD, BAD)) == pytest.approx(0.5)
    assert SCALED(group_of(GOOD, GOOD, BAD, BAD)) == pytest.approx(1.0, rel=1e-5)


def test_different_outcomes_with_equal_returns_have_no_gradient_either() -> None:
    assert CENTRED(group_of(GOOD, two_turns(outcome=0.0))) == 0.0


def test_one_member_has_no_baseline() -> None:
    assert SCALED(group_of(GOOD)) == 0.0


def test_it_travels_to_the_actors() -> None:
    assert pickle.loads(pickle.dumps(SCALED)) == SCALED
