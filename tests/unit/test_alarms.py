"""Alarms are raised once, stay raised while the fault wavers, and lose nothing when their evidence cannot be had."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from cacherl.errors import ReplayError
from cacherl.metrics import lookup
from deploy.alarms import Alarm, AlarmBoard, AlarmEvent, Condition, Finding, Observation, Window, Windowed

Metrics = Mapping[str, float]


def too_high(window: Window[Metrics]) -> Sequence[Finding]:
    """A finding for each of 'a' and 'b' above 1."""
    (metrics,) = window.last
    return [Finding(text=f"{name} is {metrics[name]:g}.", subject=name) for name in ("a", "b") if metrics.get(name, 0.0) > 1]


def of_each(judge: Callable[[Window[Metrics]], Sequence[Finding]]) -> Condition:
    """Judges every update by itself."""
    return Windowed(length=1, measure=lambda metrics: metrics, judge=judge)


def of_a(length: int, judge: Callable[[Window[float]], Sequence[Finding]]) -> Windowed[float]:
    return Windowed(length=length, measure=lambda metrics: metrics.get("a"), judge=judge)


def board(condition: Condition | None = None, **changes: Any) -> AlarmBoard:
    condition = condition or of_each(too_high)
    return AlarmBoard([Alarm(name="high", condition=condition, remedy="Lower it.", **changes)])


def resumed(before: AlarmBoard, after: AlarmBoard) -> AlarmBoard:
    """`after` with the state of `before`, as a checkpoint's JSON holds it."""
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    return after


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
    verdict = board(of_each(lambda window: [Finding(text="It is.")])).check(at(1))
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
    alarm = Alarm(name="high", condition=of_each(too_high), remedy="")
    with pytest.raises(ValueError, match=r"distinct names, got \['high', 'high'\]"):
        AlarmBoard([alarm, alarm])


def test_a_resumed_run_does_not_raise_again_what_is_raised() -> None:
    before = board()
    before.check(at(1, a=2.0))
    verdict = resumed(before, board()).check(at(2, a=2.0))
    assert verdict.events == ()
    assert verdict.metrics == before.check(at(2, a=2.0)).metrics


@pytest.mark.parametrize("split", [1, 3, 5, 9])
def test_a_resumed_run_judges_as_one_that_went_on(split: int) -> None:
    """By its window, and by what the whole run began with."""

    def grown() -> AlarmBoard:
        def judge(window: Window[float]) -> Sequence[Finding]:
            return [Finding(text=f"{window.first} to {window.last}.")] if min(window.last) > 2 * max(window.first) else []

        return board(of_a(3, judge))

    values = [1.0, 2.0, 3.0, 7.0, 7.0, 8.0, 8.0, 0.0, 8.0, 8.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0, 9.0]
    observations = [at(update, a=value) for update, value in enumerate(values)]
    through, before = grown(), grown()
    expected = [through.check(observation) for observation in observations]
    assert {verdict.events[0].update: verdict.events[0].text for verdict in expected if verdict.events} == {
        5: "(1.0, 2.0, 3.0) to (7.0, 7.0, 8.0).",
        19: "(1.0, 2.0, 3.0) to (9.0, 9.0, 9.0).",
    }
    verdicts = [before.check(observation) for observation in observations[:split]]
    after = resumed(before, grown())
    assert verdicts + [after.check(observation) for observation in observations[split:]] == expected


def test_what_is_raised_stays_so_until_a_longer_window_is_full() -> None:
    """Eight updates fill four of twelve: seven more tell nothing, and from the eighth on all is well, for five times."""

    def low(length: int) -> AlarmBoard:
        return board(of_a(length, lambda window: [Finding(text="too high.")] if min(window.last) > 1 else []))

    before = low(4)
    assert [len(before.check(at(update, a=2.0)).events) for update in range(4)] == [0, 0, 0, 1]
    assert [resumed(before, low(2)).check(at(9, a=value)).metrics["alarm/high"] for value in (2.0, 0.5)] == [1.0, 1.0]
    after = resumed(before, low(12))
    cleared = [after.check(at(update, a=0.5)).metrics["alarm/high"] for update in range(13)]
    assert cleared == [1.0] * 11 + [0.0] * 2


def test_an_alarm_that_an_earlier_session_did_not_have_begins_at_the_beginning() -> None:
    seen: list[tuple[float, ...]] = []

    def judge(window: Window[float]) -> Sequence[Finding]:
        seen.append(window.first)
        return []

    resumed(AlarmBoard([]), board(of_a(1, judge))).check(at(1, a=3.0))
    assert seen == [(3.0,)]


def test_a_window_holds_the_last_measurements_and_is_judged_once_it_is_full() -> None:
    seen: list[Window[float]] = []

    def judge(window: Window[float]) -> Sequence[Finding]:
        seen.append(window)
        return [Finding(text=f"{window.last[-1]:g} is too much.")] if window.last[-1] > 3 else []

    condition = of_a(2, judge)
    measured: list[dict[str, float]] = [{"a": 9.0}, {"b": 1.0}, {"a": 2.0}, {}, {"a": 4.0}]
    found = [condition(at(update, **metrics)) for update, metrics in enumerate(measured)]
    assert [window.last for window in seen] == [(9.0, 2.0), (2.0, 4.0)], "without the metric neither counted nor judged"
    assert {window.first for window in seen} == {(9.0, 2.0)}
    assert found == [None, (), [], (), [Finding(text="4 is too much.")]]
