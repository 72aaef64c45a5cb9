"""The live console panel of a run; plain lines where stdout is no terminal (CI, the log of a Ray job)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deploy.run_view import RunView, duration, one_line, sparkline

log = logging.getLogger(__name__)

WIDTH = 80
_SPARKS = 28
_NOTES = 3
_UNKNOWN = Text("-", style="dim")


class Panel:
    """Shows `RunView`s; a context manager.

    A terminal gets a panel that is redrawn in place. Anything else gets one line every `interval_s` seconds, and one at
    once for a new phase or a new note. Showing never raises: a run must not end because it could not be drawn.

    Args:
        console: where to; its own detection decides whether it is a terminal.
        interval_s: seconds between plain lines.
        clock: monotonic seconds.
    """

    def __init__(self, console: Console, interval_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._interval_s = interval_s
        self._clock = clock
        self._live: Live | None = None
        self._last: RunView | None = None
        self._printed: RunView | None = None
        self._due = float("-inf")
        if console.is_interactive and not console.options.ascii_only:
            self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Panel:
        self._guard(self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._guard(self._stop)

    def show(self, view: RunView) -> None:
        """Show `view` now (terminal) or when a line is due."""
        self._guard(lambda: self._draw(view))

    def _start(self) -> None:
        if self._live is not None:
            self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._last is not None and self._last is not self._printed:
            self._print(self._last)

    def _draw(self, view: RunView) -> None:
        self._last = view
        if self._live is not None:
            self._live.update(render(view), refresh=True)
            return
        before = self._printed
        news = view.notes[-1:] if before is None or view.notes != before.notes else ()
        if news or before is None or view.phase != before.phase or self._clock() >= self._due:
            self._print(view)
            for note in news:
                self._line(f"    note: {note}")

    def _print(self, view: RunView) -> None:
        self._printed = view
        self._due = self._clock() + self._interval_s
        self._line(one_line(view))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            log.debug("the panel could not be drawn", exc_info=True)


def render(view: RunView) -> RenderableType:
    """The panel: `WIDTH` columns on a wide terminal, as many as there are on a narrower one."""
    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1)
    rows.add_row("update", _progress(view))
    rows.add_row("held-out", _held_out(view))
    rows.add_row("training", _training(view))
    rows.add_row("reward", _rewards(view))
    rows.add_row("gradient", _variance_shares(view))
    rows.add_row("rollouts", _facts((_number(view.tokens_per_s, ",.0f"), "tokens/s"), (f"{view.episodes:,}", "episodes")))
    rows.add_row("replay", _pool(view))
    rows.add_row("processes", _processes(view))
    rows.add_row("waiting for", Text(view.waiting_for) if view.waiting_for else Text("nothing", style="dim"))
    notes = [Text(note, style="yellow") for note in view.notes[-_NOTES:]]
    title = Text.assemble(("CacheRL", "bold"), " · ", view.name, " · ", (view.phase, "cyan"), " · ", duration(view.elapsed_s))
    return Frame(Group(rows, *notes), title=title, title_align="left", box=box.ROUNDED, border_style="dim", width=WIDTH)


def _progress(view: RunView) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(view.updates, 1), completed=view.update, width=36, complete_style="cyan", finished_style="cyan")
    row.add_row(Text(f"{view.update} of {view.updates}", style="bold"), bar)
    return row


def _held_out(view: RunView) -> Text:
    if not view.held_out:
        return Text("not measured yet", style="dim")
    text = Text.assemble((f"{view.held_out[-1]:.2f}", "bold green"))
    if len(view.held_out) > 1:
        text.append(f"  from {view.held_out[0]:.2f}  ", style="dim")
        text.append(sparkline(view.held_out, _SPARKS), style="green")
    return text


def _training(view: RunView) -> Text:
    success, kl, staleness = _number(view.success, ".2f"), _number(view.kl, ".4f"), _number(view.staleness, ".1f")
    return _facts((success, "success"), (kl, "KL"), (staleness, "staleness"))


def _rewards(view: RunView) -> RenderableType:
    if not view.reward_parts:
        return _UNKNOWN
    return Columns((_facts((f"{value:+.2f}", name)) for name, value in view.reward_parts.items()), padding=(0, 3))


def _variance_shares(view: RunView) -> RenderableType:
    """Which parts of the reward make the siblings differ, and by it the gradient; the largest share first."""
    if not view.variance_shares:
        return _UNKNOWN
    shares = sorted(view.variance_shares.items(), key=lambda item: -item[1])
    return Columns((_facts((f"{share:.0%}", name)) for name, share in shares), padding=(0, 3))


def _pool(view: RunView) -> Text:
    return _facts((_number(view.pool_trajectories, ",d"), "trajectories"), (_number(view.pool_groups, ",d"), "groups"))


def _processes(view: RunView) -> Text:
    complete = view.actors_alive == view.actors_total
    actors = Text(f"{view.actors_alive}/{view.actors_total}", style="" if complete else "yellow")
    return _facts((actors, "actors"), (str(view.learner_ranks), "learner ranks"))


def _facts(*pairs: tuple[str | Text | None, str]) -> Text:
    """'0.68 success   0.0031 KL': each known value with its dim unit or name behind it."""
    parts = [Text.assemble(value, (f" {name}", "dim")) for value, name in pairs if value is not None]
    return Text("   ").join(parts) if parts else _UNKNOWN


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else f"{value:{form}}"
