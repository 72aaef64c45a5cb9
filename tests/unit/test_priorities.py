"""Priorities: pure functions from a group's signals to a number."""

from __future__ import annotations

import numpy as np
import pytest

from replay_service.priorities import PRIORITIES, Prioritizer, RunningReturns, Signals, find_priority, group_priority


def signals(**changes):
    fields = {"advantages": np.array([-1.0, 0.5, 0.5]), "returns": np.array([0.0, 1.0, 2.0]), **changes}
    return Signals(**fields)


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("advantage", {}, 2 / 3),
        ("advantage", {"ratios": np.array([0.5, 1.0, 1.0])}, 1.5 / 3),
        ("advantage", {"ratios": np.array([4.0, 1.0, 1.0])}, 2 / 3),  # more likely than before: not favoured for it
        ("constant", {"ratios": np.array([0.5, 1.0, 1.0])}, 1.0),
        ("return", {"mean_return": 0.25}, 0.75),
        ("return", {"mean_return": 1.5}, 0.5),
        ("extreme", {"mean_return": 0.5, "std_return": 0.5}, 3.0),
        ("extreme", {"mean_return": 1.8, "std_return": 0.9}, 2.0),
        ("extreme", {"mean_return": 0.5, "std_return": 0.0}, 1.5),
        ("td_error", {"td_errors": np.array([-2.0, 1.0])}, 1.5),
        ("td_error", {"td_errors": np.array([])}, 0.0),
        ("constant", {}, 1.0),
    ],
)
def test_values(name, known, expected):
    assert find_priority(name)(signals(**known)) == pytest.approx(expected)


def test_very_good_and_very_bad_returns_weigh_the_same():
    extreme = find_priority("extreme")
    assert extreme(signals(returns=np.array([1.0, 4.0]), mean_return=1.0)) == extreme(
        signals(returns=np.array([1.0, -2.0]), mean_return=1.0)
    )


@pytest.mark.parametrize("name", PRIORITIES)
def test_a_group_without_gradient_has_priority_0_whatever_the_function(name):
    flat = signals(advantages=np.zeros(3), returns=np.full(3, 9.0), td_errors=np.ones(2))
    assert group_priority(find_priority(name), flat) == 0.0


def test_td_errors_need_a_critic():
    with pytest.raises(ValueError, match="'td_error' needs a critic"):
        find_priority("td_error")(signals())


def test_a_users_own_by_dotted_path(monkeypatch, tmp_path):
    (tmp_path / "my_priorities.py").write_text(
        "LIMIT = 3\ndef negative(signals):\n    return -1.0\ndef longest(signals):\n    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert group_priority(find_priority("my_priorities.longest"), signals()) == 7.0
    with pytest.raises(ValueError, match=r"priority function 'negative' returned -1\.0, must be >= 0"):
        group_priority(find_priority("my_priorities.negative"), signals())
    with pytest.raises(ValueError, match=r"'my_priorities\.LIMIT' is a int, not a function"):
        find_priority("my_priorities.LIMIT")
    with pytest.raises(ValueError, match=r"'my_priorities\.absent' cannot be imported"):
        find_priority("my_priorities.absent")
    with pytest.raises(ValueError, match="must be one of advantage, return, extreme, td_error, constant or a dotted path"):
        find_priority("typo")


def test_running_returns_start_as_the_plain_mean():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    running = RunningReturns(decay=0.999).with_returns(values[:2]).with_returns(values[2:])
    assert (running.count, running.mean, running.std) == (4, pytest.approx(values.mean()), pytest.approx(values.std()))


def test_running_returns_forget():
    running = RunningReturns(decay=0.9).with_returns(np.zeros(100)).with_returns(np.ones(100))
    assert running.mean == pytest.approx(1, abs=1e-4)
    assert RunningReturns().std == 0.0


def test_a_prioritizer_judges_by_what_came_before():
    prioritizer = Prioritizer("return")
    advantages = np.array([-1.0, 1.0])
    assert prioritizer.fresh(advantages, np.array([1.0, 3.0])) == 2.0  # nothing was seen: the mean is 0
    assert prioritizer.fresh(advantages, np.array([2.0, 4.0])) == 1.0
    assert prioritizer.trained(advantages, np.array([2.5, 2.5]), ratios=np.ones(2), td_errors=None) == 0.0
    assert prioritizer.trained(advantages, np.array([2.0, 4.0]), ratios=np.ones(2), td_errors=None) == 0.5


def test_td_errors_are_the_critics_once_it_has_judged_and_the_means_before():
    prioritizer = Prioritizer("td_error")
    ones = np.ones(2)
    assert prioritizer.fresh(ones, np.array([1.0, 3.0])) == 2.0
    assert prioritizer.fresh(ones, np.array([1.0, 4.0])) == 1.5  # the mean so far is 2
    errors = np.array([0.5, -0.25, 0.0])
    assert prioritizer.trained(ones, np.array([1.0, 4.0]), ratios=ones, td_errors=errors) == 0.25
