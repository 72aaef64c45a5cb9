"""The charts of a run's report: which metrics belong together, and how each is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

import plotly.graph_objects as go

from cacherl.metrics import Metric, lookup
from deploy.run_record import Series

_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
_INK, _GRID = "#334155", "#e2e8f0"
#: Up to so many points a line also shows its points.
_FEW = 60
_HEIGHT = 260
#: Bounds for fractions, with room for a line at 0 or at 1.
_SHARE = (-0.03, 1.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Metrics that share a unit and are read together.

    Attributes:
        title: what the reader sees.
        patterns: metric names; 'reward/*' takes the whole family.
        stacked: the values are parts of a whole.
        axis: bounds of the vertical axis, None for what the data need.
    """

    title: str
    patterns: tuple[str, ...]
    stacked: bool = False
    axis: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Charts that answer one question."""

    question: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart with data in it: an HTML fragment that needs plotly.js on the page, and the declarations of what it shows."""

    title: str
    html: str
    metrics: tuple[Metric, ...]


SECTIONS = (
    Section(
        question="Does it learn?",
        charts=(
            Chart(title="Held-out success", patterns=("eval/success", "eval/success/*"), axis=_SHARE),
            Chart(title="Training success", patterns=("rollout/success", "rollout/truncated"), axis=_SHARE),
            Chart(title="Reward and its parts", patterns=("rollout/return", "reward/*")),
            Chart(title="Warm start", patterns=("warm_start/loss",)),
        ),
    ),
    Section(
        question="What is it given to do?",
        charts=(
            Chart(title="Level of the curriculum", patterns=("curriculum/level", "curriculum/level/*")),
            Chart(title="Each level of it", patterns=("curriculum/success/*", "curriculum/variance/*"), axis=_SHARE),
            Chart(title="Exploration", patterns=("exploration/share", "exploration/success"), axis=_SHARE),
            Chart(title="Tasks to be played again", patterns=("curriculum/remembered", "curriculum/remembered/*")),
        ),
    ),
    Section(
        question="What does the reward pay for?",
        charts=(
            Chart(title="Share of the variance within groups", patterns=("reward_batch/variance_share/*",)),
            Chart(title="Share of the reward", patterns=("reward_batch/share/*",), axis=_SHARE),
            Chart(title="Mean per trajectory", patterns=("reward_batch/mean/*",)),
            Chart(title="Range in the batch", patterns=("reward_batch/min/*", "reward_batch/max/*")),
            Chart(title="Alarms", patterns=("alarm/*",), axis=_SHARE),
        ),
    ),
    Section(
        question="Is the update sound?",
        charts=(
            Chart(title="KL divergence", patterns=("learner/kl", "learner/mismatch_kl")),
            Chart(title="Entropy", patterns=("learner/entropy",)),
            Chart(title="Ratio to the behaviour policy", patterns=("learner/ratio_mean", "learner/ratio_max")),
            Chart(title="Clipping and effective sample size", patterns=("learner/clip_fraction", "learner/ess")),
            Chart(title="Gradient norm", patterns=("learner/grad_norm",)),
        ),
    ),
    Section(
        question="What is replayed?",
        charts=(
            Chart(title="Staleness", patterns=("replay/staleness",)),
            Chart(title="Reuse", patterns=("replay/uses",)),
            Chart(title="Fresh share of the batch", patterns=("replay/fresh_fraction",), axis=_SHARE),
            Chart(title="Trajectories", patterns=("replay/trajectories", "replay/inserted", "replay/sampled")),
            Chart(title="Priority and importance weight", patterns=("replay/priority", "replay/is_weight")),
            Chart(title="Groups", patterns=("replay/groups", "replay/never_sampled", "replay/zero_variance")),
            Chart(
                title="Groups that left the pool",
                patterns=tuple(
                    f"replay/{how}" for how in ("evicted", "cleared", "superseded", "retired", "stale_dropped", "stale_refused")
                ),
            ),
            Chart(title="Who waited for whom", patterns=("replay/push_waits", "replay/sample_waits")),
        ),
    ),
    Section(
        question="Where does the time go?",
        charts=(
            Chart(title="Generation", patterns=("rollout/tokens_per_s",)),
            Chart(title="The learner's time", patterns=("time/sample", "time/update", "time/publish"), stacked=True),
        ),
    ),
)
_REST = "Everything else"


def draw_sections(series: Mapping[str, Series]) -> dict[str, tuple[Drawing, ...]]:
    """Question -> its drawings. Charts without data are left out; metrics without a chart come last, one chart each."""
    chosen = [(section.question, chart, _select(chart, series)) for section in SECTIONS for chart in section.charts]
    shown = {line.name for _, _, lines in chosen for line in lines}
    rest = (line for name, line in series.items() if name not in shown)
    chosen += [(_REST, Chart(title=line.name, patterns=(line.name,)), (line,)) for line in rest if line.known]
    drawings: dict[str, list[Drawing]] = {}
    for question, chart, lines in chosen:
        if lines:
            drawings.setdefault(question, []).append(_draw(chart, lines))
    return {question: tuple(parts) for question, parts in drawings.items()}


def describe(name: str) -> Metric:
    """The metric's declaration; one without unit and help for a name that another version of the project recorded."""
    try:
        return lookup(name)
    except KeyError:
        return Metric(name=name, unit="", help="not declared in this version")


def _select(chart: Chart, series: Mapping[str, Series]) -> tuple[Series, ...]:
    matches = (line for pattern in chart.patterns for name, line in series.items() if fnmatch(name, pattern) and line.known)
    return tuple(dict.fromkeys(matches))


def _draw(chart: Chart, lines: tuple[Series, ...]) -> Drawing:
    declared = tuple(dict.fromkeys(describe(line.name) for line in lines))
    figure = go.Figure()
    for colour, line in zip(_cycle(len(lines)), lines, strict=True):
        figure.add_trace(_trace(line, colour, chart.stacked))
    style(figure, x="update", y="" if declared[0].unit == "1" else declared[0].unit)
    figure.update_layout(
        hovermode="x unified",
        showlegend=len(lines) > 1,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        yaxis={"range": chart.axis or _flat_range(lines)},
    )
    return Drawing(title=chart.title, html=fragment(figure), metrics=declared)


def style(figure: go.Figure, *, x: str, y: str) -> None:
    """Give a figure the look and the size of all charts; `x` and `y` name its axes."""
    figure.update_layout(
        height=_HEIGHT,
        margin={"l": 56, "r": 12, "t": 8, "b": 36},
        font={"family": "system-ui, sans-serif", "size": 12, "color": _INK},
        plot_bgcolor="white",
        paper_bgcolor="white",
        xaxis={"title": {"text": x}, "gridcolor": _GRID, "zeroline": False},
        yaxis={"title": {"text": y}, "gridcolor": _GRID, "zerolinecolor": _GRID},
    )


def fragment(figure: go.Figure) -> str:
    """A figure as HTML that needs plotly.js on its page."""
    config = {"displayModeBar": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def _trace(line: Series, colour: str, stacked: bool) -> go.Scatter:
    values = [None if value is None else float(f"{value:.6g}") for value in line.values]
    return go.Scatter(
        x=list(line.steps),
        y=values,
        name=line.name,
        mode="lines+markers" if len(values) <= _FEW and not stacked else "lines",
        line={"color": colour, "width": 2},
        marker={"size": 5},
        stackgroup="all" if stacked else None,
    )


def _flat_range(lines: Iterable[Series]) -> tuple[float, float] | None:
    """Bounds for a constant, around which plotly would draw +-1 whatever its size; None when the values vary."""
    values = {value for line in lines for value in line.known}
    if len(values) != 1 or values == {0.0}:
        return None
    (value,) = values
    return (min(0.0, 1.5 * value), max(0.0, 1.5 * value))


def _cycle(count: int) -> Iterable[str]:
    return (_COLOURS[index % len(_COLOURS)] for index in range(count))
