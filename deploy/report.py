"""A run's report: one HTML file with everything in it, readable without a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from deploy.charts import draw_sections
from deploy.run_record import RunRecord, Series, read_run
from deploy.run_view import duration

REPORT_FILE = "report.html"
_TEMPLATE = "report.html.j2"
_HELD_OUT = "eval/success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A held-out success at the run's first and last evaluation, fractions in [0, 1]; None: not measured."""

    label: str
    start: float | None
    end: float | None


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run's folder from what the run recorded there; its path.

    A run that failed, or that was killed before it evaluated or even wrote a summary, gets a report of what there is.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    record = read_run(run_dir)
    path = run_dir / REPORT_FILE
    path.write_text(render_report(record), encoding="utf-8")
    return path


def render_report(record: RunRecord) -> str:
    """The report as HTML, about 5 MB: plotly.js is in it."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["duration"] = duration
    sections = {
        question: [(drawing, Markup(drawing.html)) for drawing in drawings]
        for question, drawings in draw_sections(record.series).items()
    }
    return environment.get_template(_TEMPLATE).render(
        record=record,
        summary=record.summary,
        overall=overall_change(record),
        levels=level_changes(record.series),
        sections=sections,
        plotly_js=Markup(get_plotlyjs()),
    )


def overall_change(record: RunRecord) -> Change:
    """Held-out success as the summary has it, else from the evaluations."""
    measured = _change("all levels", record.series.get(_HELD_OUT))
    start, end = (record.summary.get(key) for key in ("held_out_start", "held_out_end"))
    return Change(
        label=measured.label,
        start=measured.start if start is None else start,
        end=measured.end if end is None else end,
    )


def level_changes(series: Mapping[str, Series]) -> tuple[Change, ...]:
    """Held-out success per level, in the order of the levels' names."""
    prefix = _HELD_OUT + "/"
    return tuple(_change(name.removeprefix(prefix), series[name]) for name in sorted(series) if name.startswith(prefix))


def _change(label: str, line: Series | None) -> Change:
    known = line.known if line is not None else ()
    return Change(label=label, start=known[0] if known else None, end=known[-1] if known else None)
