"""The replay governor's decisions."""

from __future__ import annotations

import pytest

from cacherl.config import parse_config
from cacherl.errors import ConfigError
from cacherl.learning_settings import GovernorSection
from deploy.governor import Decision, ReplayGovernor


def governor(**changes: object) -> ReplayGovernor:
    settings = GovernorSection(**{"replay_ratio": (0.5, 4.0), "factor": 2.0, **changes})  # type: ignore[arg-type]
    return ReplayGovernor(settings, batch_size=64, update_frequency=64)


def seen(ess: float, kl: float) -> dict[str, float]:
    return {"learner/ess": ess, "learner/drift_kl": kl}


@pytest.mark.parametrize(
    ("ess", "kl", "change", "frequency"),
    [
        (0.9, 0.0, 1, 32),
        (0.9, 0.05, 0, 64),  # between the thresholds nothing changes
        (0.5, 0.0, 0, 64),
        (0.2, 0.0, -1, 128),
        (0.9, 0.2, -1, 128),
    ],
)
def test_one_decision(ess: float, kl: float, change: int, frequency: int) -> None:
    assert governor().observe(seen(ess, kl)) == Decision(change=change, replay_ratio=64 / frequency, update_frequency=frequency)


def test_it_stays_within_its_bounds_and_says_so() -> None:
    one = governor()
    more = [one.observe(seen(0.9, 0.0)) for _ in range(4)]
    assert [decision.replay_ratio for decision in more] == [2.0, 4.0, 4.0, 4.0]
    assert [decision.change for decision in more] == [1, 1, 0, 0]
    less = [one.observe(seen(0.1, 0.0)).update_frequency for _ in range(5)]
    assert less == [32, 64, 128, 128, 128]


def test_every_decision_is_a_metric() -> None:
    assert governor().observe(seen(0.9, 0.0)).metrics == {
        "governor/change": 1.0,
        "governor/replay_ratio": 2.0,
        "governor/update_frequency": 32.0,
    }


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"governor": {"replay_ratio": [2, 1]}}, "replay_ratio .* must be two rising positive numbers"),
        ({"governor": {"replay_ratio": [2, 3]}}, r"= 1 is the ratio that the governor starts from"),
        ({"governor": {"replay_ratio": [1, 8]}}, r"more uses than replay.max_uses 4"),
        ({"governor": {"replay_ratio": [1, 3]}, "replay": {"update_frequency": 0}}, "needs replay.update_frequency above 0"),
        ({"governor": {"factor": 2.0}}, "factor 2.0 has no effect without governor.replay_ratio"),
        ({"governor": {"lr_floor": 0.5}}, "lr_floor 0.5 has no effect without governor.lr_by_ess"),
    ],
)
def test_settings_that_cannot_work_are_refused(sections: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(sections)


@pytest.mark.parametrize(("low", "high", "fewest", "most"), [(0.3, 3.3, 3, 26), (0.5, 6.0, 2, 16)])
def test_whole_trajectories_keep_the_ratio_within_its_bounds(low: float, high: float, fewest: int, most: int) -> None:
    """8 trajectories an update at the ratio 3.3 would be 2.4 new ones, and 2 are a ratio of 4."""
    one = ReplayGovernor(GovernorSection(replay_ratio=(low, high)), batch_size=8, update_frequency=8)
    more = [one.observe(seen(0.9, 0.0)).update_frequency for _ in range(12)]
    less = [one.observe(seen(0.1, 0.0)).update_frequency for _ in range(24)]
    assert (min(more), max(less)) == (fewest, most)
    assert all(low <= 8 / frequency <= high for frequency in [*more, *less])


def test_an_update_without_a_row_of_the_policys_decides_nothing() -> None:
    assert governor().observe({"learner/drift_kl": 0.0}).change == 0


def test_a_resumed_governor_goes_on_with_what_it_had_decided() -> None:
    before, after = governor(), governor()
    decision = before.observe(seen(0.9, 0.0))
    after.load_state_dict(before.state_dict())
    assert after.update_frequency == decision.update_frequency == 32
