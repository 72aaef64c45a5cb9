"""What a person watching a run sees, in a terminal and in a log."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from deploy.panel import Panel, render
from deploy.run_view import RunView, duration, one_line, sparkline

EMPTY = RunView(name="demo", phase="warm start", elapsed_s=12.0, update=0, updates=100)
FULL = RunView(
    name="demo",
    phase="training",
    elapsed_s=252.9,
    update=34,
    updates=100,
    episodes=4352,
    tokens_per_s=2143.2,
    success=0.68,
    held_out=(0.38, 0.5, 0.71),
    reward_parts={"success": 0.64, "step_penalty": -0.08},
    variance_shares={"step_penalty": 0.08, "success": 0.92},
    kl=0.0031,
    staleness=1.2,
    pool_trajectories=3120,
    pool_groups=390,
    waiting_for="a batch",
    actors_alive=1,
    actors_total=2,
    learner_ranks=2,
    notes=("actor-1 restarted",),
)


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _text(view: RunView, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render(view))
    return console.export_text()


def test_one_line_tells_everything_that_is_known() -> None:
    assert one_line(FULL) == (
        "[04:12] training 34/100 | held-out 0.38 -> 0.71 | success 0.68 | tokens/s 2,143 | KL 0.0031 | staleness 1.2 | "
        "pool 3,120 | gradient 92% success | episodes 4,352 | actors 1/2 | waiting for a batch"
    )
    assert one_line(EMPTY) == "[00:12] warm start 0/100 | episodes 0 | actors 0/0"


def test_duration_and_sparkline() -> None:
    assert (duration(59.9), duration(3852)) == ("00:59", "1:04:12")
    assert sparkline((0.0, 0.5, 1.0, 7.0), 3) == "▅██"


def test_panel_shows_every_number_within_eighty_columns() -> None:
    text = _text(FULL)
    assert max(map(len, text.splitlines())) == 80
    for shown in (
        "demo · training · 04:12",
        "34 of 100",
        "0.71  from 0.38  ▄▅▆",
        "0.68 success   0.0031 KL   1.2 staleness",
        "+0.64 success   -0.08 step_penalty",
        "92% success   8% step_penalty",
        "2,143 tokens/s   4,352 episodes",
        "3,120 trajectories   390 groups",
        "1/2 actors   2 learner ranks",
        "a batch",
        "actor-1 restarted",
    ):
        assert shown in text


def test_panel_of_a_run_that_has_just_begun() -> None:
    text = _text(EMPTY)
    assert "not measured yet" in text
    assert "None" not in text


def test_a_narrow_terminal_gets_a_narrow_panel() -> None:
    assert max(map(len, _text(FULL, width=50).splitlines())) == 50


def test_text_in_brackets_is_not_taken_for_markup() -> None:
    odd = replace(FULL, waiting_for="actor [red]1[/red]", notes=("lost [/nothing]",))
    assert "actor [red]1[/red]" in _text(odd)
    assert "lost [/nothing]" in _text(odd)


def test_log_gets_a_line_when_due_for_a_new_phase_for_a_note_and_at_the_end() -> None:
    out, clock = io.StringIO(), Clock()
    with Panel(Console(file=out, width=40), 10.0, clock=clock) as panel:
        for second, view in (
            (0.0, EMPTY),
            (3.0, replace(EMPTY, episodes=1)),
            (4.0, replace(EMPTY, phase="training", episodes=2)),
            (13.0, replace(EMPTY, phase="training", episodes=3)),
            (14.0, replace(EMPTY, phase="training", episodes=4)),
            (15.0, replace(EMPTY, phase="training", episodes=5, notes=("actor-1 restarted",))),
            (16.0, replace(EMPTY, phase="training", episodes=6, notes=("actor-1 restarted",))),
        ):
            clock.now = second
            panel.show(view)
    lines = [line.split(" | ")[1] if " | " in line else line for line in out.getvalue().splitlines()]
    assert lines == ["episodes 0", "episodes 2", "episodes 4", "episodes 5", "    note: actor-1 restarted", "episodes 6"]


def test_terminal_is_redrawn_in_place() -> None:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=80, height=40, legacy_windows=False, _environ={"TERM": "xterm-256color"}
    )
    with Panel(console, 10.0) as panel:
        panel.show(EMPTY)
        panel.show(FULL)
    assert "34 of 100" in out.getvalue()
    assert "\x1b[1A" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_that_fails_does_not_stop_the_run(terminal: bool) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("the terminal is gone")

    console = Console(file=Broken(), force_terminal=terminal, width=80, _environ={"TERM": "xterm"})
    with Panel(console, 10.0) as panel:
        panel.show(FULL)
        panel.show(EMPTY)
