"""Alarms are raised once, stay raised while the fault wavers, and lose nothing when their evidence cannot be had."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from cacherl.errors import ReplayError
from cacherl.metrics import lookup
from deploy.alarms import Alarm, AlarmBoard, AlarmEvent, Finding, Observation, Windowed


def too_high(observation: Observation) -> Sequence[Finding]:
    """A finding for each of 'a' and 'b' above 1."""
    return [
        Finding(text=f"{name} is {observation.metrics[name]:g}.", subject=name)
        for name in ("a", "b")
        if observation.metrics.get(name, 0.0) > 1
    ]


def board(condition: object = too_high, **changes: object) -> AlarmBoard:
    return AlarmBoard([Alarm(name="high", condition=condition, remedy="Lower it.", **changes)])  # type: ignore[arg-type]


def at(update: int, **metrics: float) -> Observation:
    return Observation(update=update, metrics=metrics, group_ids=("g1",))


def test_an_alarm_is_raised_once_per_subject_and_is_a_metric() -> None:
    alarms = board()
    assert alarms.check(at(1, a=0.5)).metrics == {"alarm/high": 0.0}
    verdict = alarms.check(at(2, a=2.0))
    assert verdict.metrics == {"alarm/high": 1.0, "alarm/high/a": 1.0}
    assert verdict.events == (AlarmEvent(name="high", subject="a", update=2, text="a is 2.", remedy="Lower it."),)
    assert str(verdict.events[0]) == "ALARM high at update 2: a is 2. Lower it."
    again = alarms.check(at(3, a=3.0, b=4.0))
    assert [event.subject for event in again.events] == ["b"]
    assert {lookup(name).name for name in again.metrics} == {"alarm/*"}


def test_a_wavering_value_is_one_alarm_and_a_later_one_is_another() -> None:
    alarms = board()
    wavering = [2.0, 0.5, 2.0, 0.5, 0.5, 0.5, 0.5, 2.0]
    events = [len(alarms.check(at(update, a=value)).events) for update, value in enumerate(wavering)]
    assert events == [1, 0, 0, 0, 0, 0, 0, 0]
    later = [alarms.check(at(10 + update)).metrics for update in range(5)]
    assert [metrics["alarm/high"] for metrics in later] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert [metrics["alarm/high/a"] for metrics in later] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert len(alarms.check(at(20, a=2.0)).events) == 1


def test_a_finding_without_a_subject_is_about_the_run() -> None:
    verdict = board(lambda observation: [Finding(text="It is.")]).check(at(1))
    assert verdict.metrics == {"alarm/high": 1.0}
    assert verdict.events[0].subject == ""


def test_evidence_is_collected_when_the_alarm_is_raised_and_only_then() -> None:
    seen = []

    def evidence(finding: Finding, observation: Observation) -> str:
        seen.append((finding.subject, observation.update, observation.group_ids))
        return "alarms/it.jsonl"

    alarms = board(evidence=evidence)
    (event,) = alarms.check(at(1, a=2.0)).events
    assert alarms.check(at(2, a=2.0)).events == ()
    assert seen == [("a", 1, ("g1",))]
    assert str(event).endswith("Lower it. See alarms/it.jsonl.")


@pytest.mark.parametrize("error", [ReplayError("gone"), OSError("full")])
def test_an_alarm_is_raised_without_evidence_that_cannot_be_had(error: Exception) -> None:
    def evidence(finding: Finding, observation: Observation) -> str:
        raise error

    (event,) = board(evidence=evidence).check(at(1, a=2.0)).events
    assert event.evidence == ""


def test_two_alarms_of_one_name_are_refused() -> None:
    alarm = Alarm(name="high", condition=too_high, remedy="")
    with pytest.raises(ValueError, match=r"distinct names, got \['high', 'high'\]"):
        AlarmBoard([alarm, alarm])


def test_a_resumed_run_does_not_raise_again_what_is_raised() -> None:
    before = board()
    before.check(at(1, a=2.0))
    after = board()
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    verdict = after.check(at(2, a=2.0))
    assert verdict.events == ()
    assert verdict.metrics == before.check(at(2, a=2.0)).metrics


def test_what_is_raised_stays_so_until_a_resumed_run_s_window_is_full_again() -> None:
    """The window is not kept: eight updates tell nothing, and the ninth that all is well, for the first of five times."""

    def windowed() -> AlarmBoard:
        def judge(values: Sequence[float]) -> Sequence[Finding]:
            return [Finding(text="too high.")] if min(values) > 1 else []

        return board(Windowed(length=8, measure=lambda metrics: metrics.get("a"), judge=judge))

    before, after, well = windowed(), windowed(), windowed()
    raised = [before.check(at(update, a=2.0)) for update in range(8)]
    assert [len(verdict.events) for verdict in raised] == [0] * 7 + [1]
    after.load_state_dict(before.state_dict())
    again = [after.check(at(update, a=2.0)) for update in range(12)]
    assert [len(verdict.events) for verdict in again] == [0] * 12
    assert {verdict.metrics["alarm/high"] for verdict in again} == {1.0}
    well.load_state_dict(before.state_dict())
    cleared = [well.check(at(update, a=0.5)).metrics["alarm/high"] for update in range(13)]
    assert cleared == [1.0] * 11 + [0.0] * 2


def test_a_window_holds_the_last_measurements_and_is_judged_once_it_is_full() -> None:
    seen: list[tuple[float, ...]] = []

    def judge(values: Sequence[float]) -> Sequence[Finding]:
        seen.append(tuple(values))
        return [Finding(text=f"{values[-1]:g} is too much.")] if values[-1] > 3 else []

    condition = Windowed(length=2, measure=lambda metrics: metrics.get("a"), judge=judge)
    found = [
        condition(at(update, **metrics)) for update, metrics in enumerate([{"a": 9.0}, {"b": 1.0}, {"a": 2.0}, {}, {"a": 4.0}])
    ]
    assert seen == [(9.0, 2.0), (2.0, 4.0)], "an update without the metric neither counts nor is judged"
    assert found == [None, (), [], (), [Finding(text="4 is too much.")]]
