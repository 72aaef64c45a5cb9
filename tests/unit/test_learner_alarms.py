"""The learner's alarms: what raises each, and what does not."""

from __future__ import annotations

import json

import pytest

from cacherl.alarm_settings import LearnerAlarmsSection
from cacherl.metrics import lookup
from deploy.alarms import AlarmBoard, Observation
from deploy.learner_alarms import learner_alarms

HEALTHY = {
    "learner/drift_kl": 0.01, "learner/entropy": 1.0, "learner/ratio_mean": 1.0, "learner/ess": 0.8,
    "learner/skipped_steps": 0.0, "learner/mismatch_kl": 1e-4, "learner/good_logprob": -0.5, "learner/lr": 1e-4,
}  # fmt: skip
WINDOW = 4


def raised(updates: list[dict[str, float]]) -> dict[str, int]:
    """Alarm -> update that raised it."""
    board = AlarmBoard(learner_alarms(LearnerAlarmsSection(window=WINDOW)))
    events = [
        event for n, metrics in enumerate(updates) for event in board.check(Observation(update=n, metrics=metrics)).events
    ]
    return {event.name: event.update for event in events}


def after_health(**changes: float) -> list[dict[str, float]]:
    changed = HEALTHY | {f"learner/{name}": value for name, value in changes.items()}
    return [HEALTHY] * WINDOW + [changed] * WINDOW


def test_a_healthy_run_raises_none() -> None:
    assert raised([HEALTHY] * 20) == {}


@pytest.mark.parametrize(
    ("changes", "name", "update"),
    [
        ({"drift_kl": 0.05}, "kl_surge", 4),
        ({"entropy": 0.01}, "entropy_collapse", 7),  # once the whole window has collapsed
        ({"ratio_mean": 3.0}, "ratio_range", 4),
        ({"ratio_mean": 0.1}, "ratio_range", 4),
        ({"ess": 0.001}, "ess_collapse", 7),
        ({"skipped_steps": 1.0}, "gradient_spikes", 4),
        ({"mismatch_kl": 0.1}, "engine_mismatch", 4),
        ({"good_logprob": -1.5}, "good_likelihood", 4),
    ],
)
def test_each_is_raised_by_its_own_metric_alone(changes: dict[str, float], name: str, update: int) -> None:
    assert raised(after_health(**changes)) == {name: update}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"drift_kl": 0.05}, "learner/drift_kl is 0.05, after a median of 0.01 over 4 updates."),
        ({"entropy": 0.01}, "learner/entropy fell from 1 in the first 4 updates to 0.01."),
        ({"ratio_mean": 3.0}, "learner/ratio_mean was 1.5 on average of 4 updates, above 1.2."),
        ({"ess": 0.001}, "learner/ess was 0.001 on average of 4 updates, below 0.05."),
        ({"good_logprob": -1.5}, "learner/good_logprob fell from -0.5 to -1 within 4 updates."),
    ],
)
def test_a_finding_has_the_figures(changes: dict[str, float], text: str) -> None:
    board = AlarmBoard(learner_alarms(LearnerAlarmsSection(window=WINDOW)))
    updates = enumerate(after_health(**changes))
    events = [event for n, metrics in updates for event in board.check(Observation(update=n, metrics=metrics)).events]
    assert [event.text for event in events] == [text]


def test_what_is_small_is_no_surge_however_it_grows() -> None:
    calm = HEALTHY | {"learner/drift_kl": 1e-3}
    assert raised([calm] * WINDOW + [calm | {"learner/drift_kl": 0.02}] * WINDOW) == {}


def test_mismatch_that_grows_while_nothing_is_learned() -> None:
    resting = HEALTHY | {"learner/lr": 0.0, "learner/mismatch_kl": 1e-5}
    grown = resting | {"learner/mismatch_kl": 5e-5}
    assert raised([resting] * 3 + [grown]) == {"mismatch_at_rest": 3}
    assert raised([resting | {"learner/lr": 1e-4}] * 3 + [grown | {"learner/lr": 1e-4}]) == {}


def test_a_resumed_run_compares_with_what_the_run_began_with() -> None:
    """Entropy that collapsed, and mismatch that grew, before the checkpoint."""
    resting = HEALTHY | {"learner/lr": 0.0, "learner/mismatch_kl": 1e-5}
    low = resting | {"learner/entropy": 0.01, "learner/mismatch_kl": 3e-5}
    before, after = (AlarmBoard(learner_alarms(LearnerAlarmsSection(window=WINDOW))) for _ in range(2))
    for update, metrics in enumerate([resting] * WINDOW + [low] * (WINDOW - 1)):
        assert not before.check(Observation(update=update, metrics=metrics)).events
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    events = after.check(Observation(update=7, metrics=low | {"learner/mismatch_kl": 5e-5})).events
    assert [event.text for event in events] == [
        "learner/entropy fell from 1 in the first 4 updates to 0.01.",
        "learner/mismatch_kl grew from 1e-05 to 5e-05 at learning rate 0.",
    ]


def test_metrics_that_were_not_measured_raise_nothing() -> None:
    assert raised([{}] * 10) == {}


def test_all_are_declared_and_can_be_switched_off() -> None:
    alarms = learner_alarms(LearnerAlarmsSection())
    assert len(alarms) == 8
    for alarm in alarms:
        assert lookup(f"alarm/{alarm.name}").unit
        assert alarm.remedy.endswith(".")
    assert learner_alarms(LearnerAlarmsSection(enabled=False)) == []
