"""The priority of a fresh group: the size of its advantages, and nothing where the raw outcomes agree."""

from __future__ import annotations

import pickle

import pytest

from cacherl.config import parse_config
from cacherl.errors import ConfigError
from deploy.priority import FreshPriority
from fakes import group_of, two_turns


def priority_of(**sections: dict[str, object]) -> FreshPriority:
    return FreshPriority(parse_config(sections))


CENTRED = priority_of(advantage={"normalize_std": False})
SCALED = priority_of(advantage={"normalize_std": True})

#: Outcome 1 returns 1.01, outcome 0 returns 0.01.
GOOD, BAD = two_turns(), two_turns(outcome=0.0, rewards={"final": 0.0})


@pytest.mark.parametrize("outcome", [0.0, 1.0])
@pytest.mark.parametrize("priority", [CENTRED, SCALED])
def test_equal_outcomes_have_no_priority_however_shaped_the_returns(priority: FreshPriority, outcome: float) -> None:
    members = [two_turns(outcome=outcome, rewards={"final": outcome, "shaping": extra}) for extra in (0.0, 0.3, -0.2)]
    group = group_of(*members)
    assert len(set(group.returns.tolist())) == 3
    assert priority(group) == 0.0


def test_by_request_the_return_decides() -> None:
    group = group_of(two_turns(), two_turns(rewards={"final": 0.8}))
    by_return = priority_of(advantage={"zero_variance": "return", "normalize_std": False})
    assert by_return(group) == pytest.approx(0.1)
    assert CENTRED(group) == 0.0


def test_by_hand() -> None:
    # One of four succeeds: mean 0.26, deviations 0.75 and three times -0.25, standard deviation sqrt(3)/4.
    group = group_of(GOOD, BAD, BAD, BAD)
    assert CENTRED(group) == pytest.approx((0.75 + 3 * 0.25) / 4)
    assert SCALED(group) == pytest.approx(0.375 / (3**0.5 / 4), rel=1e-5)


def test_one_demonstration_that_succeeds_gives_a_failed_group_a_gradient() -> None:
    shown = two_turns(source="demonstration")
    assert CENTRED(group_of(BAD, BAD, BAD)) == 0.0
    assert CENTRED(group_of(BAD, BAD, BAD, shown)) == pytest.approx((0.75 + 3 * 0.25) / 4)


def test_half_successful_is_what_an_unscaled_priority_prefers() -> None:
    assert CENTRED(group_of(GOOD, GOOD, BAD, BAD)) == pytest.approx(0.5)
    assert SCALED(group_of(GOOD, GOOD, BAD, BAD)) == pytest.approx(1.0, rel=1e-5)


def test_different_outcomes_with_equal_returns_have_no_gradient_either() -> None:
    assert CENTRED(group_of(GOOD, two_turns(outcome=0.0))) == 0.0


def test_one_member_has_no_baseline() -> None:
    assert SCALED(group_of(GOOD)) == 0.0


def test_each_priority_ranks_by_what_it_names() -> None:
    """Returns so far average 0.01; 1.01 is new. Advantages of +-1 in both groups of two."""
    even, lost = group_of(GOOD, BAD), group_of(BAD, BAD)
    values = {}
    for name in ("advantage", "return", "extreme", "constant"):
        priority = priority_of(replay={"priority": name})
        for _ in range(4):
            assert priority(lost) == 0.0
        values[name] = priority(even)
    assert values["advantage"] == pytest.approx(1.0, abs=1e-5)
    assert values["return"] == pytest.approx(0.5)
    assert values["extreme"] == pytest.approx(1.0)  # no return had differed: the distance itself
    assert values["constant"] == 1.0


def test_an_unknown_priority_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"replay\.priority: priority 'size' must be one of advantage, .* or a dotted path"):
        priority_of(replay={"priority": "size"})
    with pytest.raises(ConfigError, match=r"replay\.priority 'td_error' needs a critic: set advantage\.estimator to gae"):
        priority_of(replay={"priority": "td_error"})
    assert priority_of(replay={"priority": "td_error"}, advantage={"estimator": "gae"})(group_of(GOOD, BAD)) == pytest.approx(
        0.51
    )


def test_it_travels_to_the_actors() -> None:
    group = group_of(GOOD, BAD)
    assert pickle.loads(pickle.dumps(SCALED))(group) == SCALED(group)
