"""A run's report says what the run recorded, whatever became of the run."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cacherl.config import RunConfig
from cacherl.metrics import JsonlSink
from deploy.alarms import Alarm, AlarmBoard, AlarmEvent, Finding, Observation, Windowed
from deploy.charts import SECTIONS, describe, draw_sections
from deploy.report import Change, level_changes, overall_change, write_report
from deploy.run_record import RunRecord, Series, read_run
from support import PROJECT

SUMMARY = {
    "status": "succeeded",
    "held_out_start": 0.375,
    "held_out_end": 0.9251,
    "updates": 2,
    "episodes": 13056,
    "elapsed_s": 401.3,
    "phases": {"warm start": 58.0, "training": 280.0},
    "seed": 7,
    "error": None,
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run of two updates."""
    folder = tmp_path / "tiny"
    sink = JsonlSink(folder / "metrics.jsonl")
    sink.write(0, {"eval/success": 0.375, "eval/success/1": 0.5, "eval/success/3": 0.25})
    sink.write(1, {"learner/kl": 0.0123, "reward/tool_use": 0.07, "learner/lr": 1e-4, "learner/grad_norm": float("nan")})
    sink.write(2, {"learner/kl": 0.0456, "eval/success": 0.925, "eval/success/1": 1.0, "eval/success/3": 0.85})
    sink.close()
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    config = RunConfig().model_dump(mode="json")
    config["learner"]["lr"] = 3e-4
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    return folder


def _page(path: Path) -> str:
    """The report without plotly.js."""
    return re.sub(r"<script>.*?</script>", "", path.read_text("utf-8"), count=1, flags=re.DOTALL)


def test_report_shows_headline_levels_settings_and_help(run_dir: Path) -> None:
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    page = _page(path)
    assert "0.38 → 0.93" in page
    assert "13,056" in page
    assert "06:41" in page
    assert "<td>3</td><td>0.25</td><td>0.85</td>" in page
    assert "estimate of KL to the reference policy" in page
    assert "[nats/token]" in page
    assert '<tr class="changed"><td><code>learner.lr</code></td><td>0.0003</td><td>0.0001</td></tr>' in page
    assert "<tr><td><code>rollout.temperature</code></td><td>1.0</td><td></td></tr>" in page


def test_report_shows_alarms_escaped_with_a_link_to_their_evidence(run_dir: Path) -> None:
    event = AlarmEvent(name="high", subject="a", update=7, text="a <is> 2.", remedy="Lower it.", evidence="alarms/a.jsonl")
    finding = Finding(text=event.text, subject="a")
    condition = Windowed(length=1, measure=lambda metrics: metrics, judge=lambda _: [finding])
    board = AlarmBoard([Alarm(name="high", condition=condition, remedy=event.remedy)])
    assert board.check(Observation(update=7, metrics={})).events == (replace(event, evidence=""),)
    (run_dir / "alarms.jsonl").write_text(json.dumps(asdict(event)) + "\n")
    page = _page(write_report(run_dir))
    assert "<b>high</b> at update 7: a &lt;is&gt; 2. Lower it." in page
    assert '<a href="alarms/a.jsonl">alarms/a.jsonl</a>' in page


def test_points_are_the_finite_values_of_a_metric_by_step(run_dir: Path) -> None:
    run = read_run(run_dir)
    assert run.points("eval/success") == {0: 0.375, 2: 0.925}
    assert run.points("learner/grad_norm") == run.points("learner/ess") == {}


def test_the_tables_of_the_benchmarks(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    import learning
    import smollm2

    sink = JsonlSink(run_dir / "metrics.jsonl")
    sink.write(1, {"rollout/tool_calls": 40.0, "rollout/turns": 3.0})
    sink.write(2, {"rollout/tool_calls": 80.0, "rollout/turns": 4.0})
    sink.close()
    event = AlarmEvent(name="high", subject="a", update=2, text="", remedy="")
    (run_dir / "alarms.jsonl").write_text(json.dumps(asdict(event)) + "\n")
    cells = [
        "0.375",
        "0.650",
        "only 80 made",
        "0.925",
        "0.925",
        "1.00 / 0.85",
        "3.5",
        "high a",
        "2",
        "13,056",
        "80",
        "280 s",
        "401 s",
    ]
    assert list(learning.figures(run_dir, [40, 100])) == cells
    rows = smollm2.table(run_dir).splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 0", "0.375"], ["| 2", "0.925"]]
    assert [row.split(" | ")[5] for row in rows] == ["-", "80"]


def test_report_needs_no_network(run_dir: Path) -> None:
    page = _page(write_report(run_dir))
    assert not re.search(r"""(src|href)\s*=\s*["'](https?:)?//""", page)
    assert "Plotly.newPlot" in page


def test_curves_hold_the_recorded_values(run_dir: Path) -> None:
    record = read_run(run_dir)
    assert record.series["learner/kl"] == Series(name="learner/kl", steps=(1, 2), values=(0.0123, 0.0456))
    assert record.series["learner/grad_norm"].values == (None,)
    drawings = {drawing.title: drawing for parts in draw_sections(record.series).values() for drawing in parts}
    assert '"x":[1,2],"y":[0.0123,0.0456]' in drawings["KL divergence"].html
    assert [metric.name for metric in drawings["Held-out success"].metrics] == ["eval/success", "eval/success/*"]
    assert "Gradient norm" not in drawings, "nothing finite to draw"
    assert "learner/lr" in drawings, "a metric without a chart of its own is drawn all the same"


def test_charts_name_declared_metrics_of_one_unit() -> None:
    for section in SECTIONS:
        for chart in section.charts:
            assert len({describe(pattern.replace("*", "any")).unit for pattern in chart.patterns}) == 1, chart.title


def test_levels_and_overall_come_from_first_and_last_evaluation(run_dir: Path) -> None:
    record = read_run(run_dir)
    assert level_changes(record.series) == (Change(label="1", start=0.5, end=1.0), Change(label="3", start=0.25, end=0.85))
    assert overall_change(record) == Change(label="all levels", start=0.375, end=0.9251)
    (run_dir / "summary.json").unlink()
    assert overall_change(read_run(run_dir)) == Change(label="all levels", start=0.375, end=0.925)


def test_failed_run_shows_its_error_escaped(run_dir: Path) -> None:
    failed = {
        **SUMMARY,
        "status": "failed",
        "error": "LearnerError: rank 1 <died>",
        "held_out_start": None,
        "held_out_end": None,
    }
    (run_dir / "summary.json").write_text(json.dumps(failed))
    (run_dir / "metrics.jsonl").unlink()
    page = _page(write_report(run_dir))
    assert "LearnerError: rank 1 &lt;died&gt;" in page
    assert "No evaluation was recorded." in page
    assert "No metrics were recorded." in page


def test_killed_run_gets_a_report_of_what_there_is(run_dir: Path) -> None:
    (run_dir / "summary.json").unlink()
    (run_dir / "config.yaml").unlink()
    with (run_dir / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3, "learner/kl": 0.0')
    page = _page(write_report(run_dir))
    assert "unfinished" in page
    assert "0.38 → 0.93" in page
    assert read_run(run_dir).series["learner/kl"].steps == (1, 2)


def test_a_folder_without_anything_is_an_empty_record(tmp_path: Path) -> None:
    assert read_run(tmp_path) == RunRecord(name=tmp_path.name, summary={}, series={}, settings=())
    assert write_report(tmp_path).stat().st_size > 0


def test_no_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run folder at .*absent"):
        write_report(tmp_path / "absent")


def test_series_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="series a/b: 2 steps, 1 values"):
        Series(name="a/b", steps=(1, 2), values=(0.5,))
