"""The page of a search: one HTML file with its charts, readable without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from deploy.charts import fragment, style
from deploy.tuning.ledger import Trial
from deploy.tuning.results import best, ranked, shown, train_command
from deploy.tuning.settings import Search
from deploy.tuning.space import Range

PAGE_FILE = "search.html"
_TEMPLATE = "page.html.j2"
_COLOURS = {"finished": "#2563eb", "stopped": "#94a3b8", "failed": "#dc2626", "unfinished": "#d97706"}


def write_page(search: Search, trials: Sequence[Trial]) -> Path:
    """Write `search.html` into the search's folder; its path."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    order = ranked(trials, search.settings.mode)
    top = best(trials, search.settings.mode)
    charts = {f"{search.label} by update": _curves(search, order)}
    charts |= {f"{search.label} by {key}": _scatter(search, order, key) for key in search.space.axes}
    path = search.folder / PAGE_FILE
    page = environment.get_template(_TEMPLATE).render(
        name=search.folder.name,
        label=search.label,
        keys=tuple(search.space.axes),
        trials=order,
        best=top,
        command=top and train_command(search, top),
        charts={title: Markup(fragment(figure)) for title, figure in charts.items()},
        plotly_js=Markup(get_plotlyjs()),
    )
    path.write_text(page, encoding="utf-8")
    return path


def _curves(search: Search, trials: Sequence[Trial]) -> go.Figure:
    """One line a trial, the best in front."""
    figure = go.Figure()
    for trial in reversed(trials):
        figure.add_trace(
            go.Scatter(
                x=list(trial.updates),
                y=list(trial.values),
                name=trial.trial_id,
                mode="lines+markers",
                line={"color": _COLOURS[trial.status], "width": 2},
                hovertext=_label(trial),
            )
        )
    style(figure, x="update", y=search.label)
    figure.update_layout(showlegend=False, hovermode="closest")
    return figure


def _scatter(search: Search, trials: Sequence[Trial], key: str) -> go.Figure:
    """The last value of every trial over one axis."""
    axis = search.space.axes[key]
    known = [trial for trial in trials if trial.value is not None]
    points = [trial.point[key] for trial in known]
    numeric = isinstance(axis, Range) or all(isinstance(p, int | float) and not isinstance(p, bool) for p in points)
    figure = go.Figure(
        go.Scatter(
            x=points if numeric else [shown(point) for point in points],
            y=[trial.value for trial in known],
            mode="markers",
            marker={"size": 10, "color": [_COLOURS[trial.status] for trial in known]},
            hovertext=[_label(trial) for trial in known],
        )
    )
    figure.update_xaxes(type="log" if isinstance(axis, Range) and axis.log else "linear" if numeric else "category")
    style(figure, x=key, y=search.label)
    return figure


def _label(trial: Trial) -> str:
    values = "<br>".join(f"{key}: {shown(value)}" for key, value in trial.point.items())
    return f"{trial.trial_id} ({trial.status})<br>{values}"
