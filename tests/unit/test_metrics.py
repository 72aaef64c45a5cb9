"""Metrics are declared and arrive in every sink."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cacherl.metrics import JsonlSink, Metric, MetricWriter, TensorBoardSink, declare, lookup

NAN, INF = math.nan, math.inf


def test_every_declaration_has_a_unit_and_a_sentence() -> None:
    for name in ("learner/loss", "eval/success", "rollout/failed", "replay/staleness", "time/publish"):
        metric = lookup(name)
        assert metric.name == name
        assert metric.unit
        assert len(metric.help.split()) >= 2


def test_a_family_declares_what_is_below_it_and_not_itself() -> None:
    assert lookup("reward/final").name == "reward/*"
    assert lookup("reward/a/b").name == "reward/*"
    assert lookup("eval/success/level2").name == "eval/success/*"
    assert lookup("eval/success").name == "eval/success"
    for name in ("reward", "eval/failure", "learner", "learner/loss/a", ""):
        with pytest.raises(KeyError, match=f"metric '{name}' is not declared"):
            lookup(name)


def test_declaring_again_is_harmless_and_declaring_differently_is_not() -> None:
    loss = lookup("learner/loss")
    declare([loss])
    with pytest.raises(ValueError, match="metric 'learner/loss' is declared twice"):
        declare([Metric(name="learner/loss", unit="nats", help="something else")])
    assert lookup("learner/loss") is loss


def test_json_lines_carry_step_and_time_and_append(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    before = time.time()
    for step in (0, 7):
        with MetricWriter([JsonlSink(path)]) as writer:
            writer.write(step, {"learner/loss": 0.5, "learner/kl": NAN, "learner/ratio_max": INF})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(before <= line.pop("time") <= time.time() for line in lines)
    assert lines == [{"step": step, "learner/loss": 0.5, "learner/kl": None, "learner/ratio_max": None} for step in (0, 7)]


def test_a_json_line_is_there_before_the_sink_closes(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(1, {"learner/loss": 2.0})
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["learner/loss"] == 2.0
    sink.close()


def test_tensorboard_scalars_read_back(tmp_path: Path) -> None:
    with MetricWriter([TensorBoardSink(tmp_path)]) as writer:
        writer.write(0, {"eval/success": 0.25})
        writer.write(10, {"eval/success": 0.5, "reward/final": -1.0})
        writer.write(20, {"reward/final": NAN})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["eval/success", "reward/final"]
    assert [(event.step, event.value) for event in events.Scalars("eval/success")] == [(0, 0.25), (10, 0.5)]
    last = events.Scalars("reward/final")[-1]
    assert (last.step, math.isnan(last.value)) == (20, True)


class Remembering:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.records.append((step, dict(values)))

    def close(self) -> None:
        self.closed += 1


def test_a_writer_serves_all_sinks_and_closes_them() -> None:
    sinks = [Remembering(), Remembering()]
    with MetricWriter(sinks) as writer:
        writer.write(3, {"learner/loss": 1.0})
    assert [sink.records for sink in sinks] == [[(3, {"learner/loss": 1.0})]] * 2
    assert [sink.closed for sink in sinks] == [1, 1]


def test_an_undeclared_name_reaches_no_sink() -> None:
    sink = Remembering()
    with pytest.raises(KeyError, match="'learner/colour' is not declared"):
        MetricWriter([sink]).write(1, {"learner/loss": 1.0, "learner/colour": 2.0})
    assert sink.records == []


def test_a_resumed_file_of_lines_holds_every_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with contextlib.closing(JsonlSink(path)) as sink:
        for step in range(5):
            sink.write(step, {"learner/loss": float(step)})
    with path.open("a") as file:
        file.write('{"step": 5, "learner/lo')  # the writer was killed here
    with contextlib.closing(JsonlSink(path, resume_after=2)) as sink:
        sink.write(3, {"learner/loss": 30.0})
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["step"], record["learner/loss"]) for record in found] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]


def test_resumed_tensorboard_shows_every_step_once(tmp_path: Path) -> None:
    for last, resume_after, factor in ((5, None, 1.0), (6, 2, 10.0)):
        with contextlib.closing(TensorBoardSink(tmp_path, resume_after=resume_after)) as sink:
            for step in range(0 if resume_after is None else resume_after + 1, last):
                sink.write(step, {"learner/loss": factor * step})
        time.sleep(1.1)  # the names of event files are seconds
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("learner/loss")]
    assert found == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]
