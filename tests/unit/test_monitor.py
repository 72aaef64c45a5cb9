"""What the driver collects: phases, tokens per second, failures in a row, and metrics between updates."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from actors.report import EpisodeSummary, GroupReport, eval_metrics, rollout_metrics
from cacherl.config import parse_config
from cacherl.errors import EnvironmentFault
from cacherl.metrics import JsonlSink, MetricWriter, lookup
from deploy.monitor import Monitor
from deploy.panel import Panel
from deploy.run_view import RunView
from fakes import two_turns


class Clock:
    """Seconds, moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("deploy.monitor.time", clock)
    return clock


@pytest.fixture
def monitor(clock: Clock, tmp_path: Path) -> Iterator[Monitor]:
    with MetricWriter([JsonlSink(tmp_path / "metrics.jsonl")]) as writer:
        yield Monitor(
            config=parse_config({"rollout": {"max_failed_groups": 2}}),
            writer=writer,
            panel=Panel(Console(file=io.StringIO()), 5.0),
            view=RunView(name="run", phase="starting", elapsed_s=0.0, update=0, updates=3),
            started=clock.now,
        )


def episode(**changes: Any) -> EpisodeSummary:
    fields: dict[str, Any] = {
        "family": "trip",
        "level": 1,
        "outcome": 1.0,
        "total_reward": 0.9,
        "reward_parts": {"final": 1.0, "step_penalty": -0.1},
        "turns": 5,
        "sampled_tokens": 40,
        "tool_calls": 4,
        "tool_errors": 1,
        "end": "terminated",
    }
    return EpisodeSummary(**{**fields, **changes})


def report(*episodes: EpisodeSummary, errors: tuple[str, ...] = ()) -> GroupReport:
    push = "ok" if episodes else "failed"
    return GroupReport(group_id="g", actor="actor-0", push=push, episodes=episodes, errors=errors)


def test_the_phases_add_up_to_the_whole_run(monitor: Monitor, clock: Clock) -> None:
    for phase, seconds in (("starting", 2.0), ("training", 3.0), ("evaluation", 5.0), ("training", 7.0)):
        monitor.enter(phase, "something")
        clock.now += seconds
    monitor.show(waiting_for="")
    clock.now += 1.0
    monitor.close()
    assert monitor.phases == pytest.approx({"starting": 2.0, "training": 11.0, "evaluation": 5.0})
    assert sum(monitor.phases.values()) == pytest.approx(monitor.elapsed_s) == pytest.approx(18.0)
    assert (monitor.view.phase, monitor.view.waiting_for) == ("training", "")


def test_tokens_per_second_over_the_window(monitor: Monitor, clock: Clock) -> None:
    assert monitor.tokens_per_s() == 0.0
    clock.now += 10
    monitor.on_report(report(episode(), episode(sampled_tokens=60)))
    assert monitor.tokens_per_s() == pytest.approx(100 / 10)
    clock.now += 15
    monitor.on_report(report(episode(sampled_tokens=300)))
    assert monitor.tokens_per_s() == pytest.approx(400 / 20)
    assert monitor.view.tokens_per_s == pytest.approx(20.0)
    clock.now += 6
    assert monitor.tokens_per_s() == pytest.approx(300 / 20)
    clock.now += 20
    assert monitor.tokens_per_s() == 0.0


def test_an_update_that_outlasts_the_window_has_a_rate_too(monitor: Monitor, clock: Clock) -> None:
    clock.now += 100
    monitor.enter("training")
    monitor.on_report(report(episode(sampled_tokens=300)))
    clock.now += 60
    assert monitor.drain()["rollout/tokens_per_s"] == pytest.approx(300 / 60)
    clock.now += 30
    monitor.on_report(report(episode(sampled_tokens=600)))
    monitor.enter("evaluation")
    monitor.enter("training")
    assert monitor.drain()["rollout/tokens_per_s"] == pytest.approx(600 / 30)


def test_too_many_failed_groups_in_a_row_end_the_run(monitor: Monitor) -> None:
    failed = report(errors=("first cause", "last cause"))
    monitor.on_report(failed)
    monitor.on_report(failed)
    monitor.on_report(report(episode(), errors=("one of two",)))
    monitor.on_report(failed)
    monitor.on_report(failed)
    message = r"^3 groups in a row failed \(rollout.max_failed_groups\); the last one because of: last cause$"
    with pytest.raises(EnvironmentFault, match=message):
        monitor.on_report(failed)


def test_no_failed_group_may_be_tolerated(monitor: Monitor) -> None:
    monitor.config = parse_config({"rollout": {"max_failed_groups": 0}})
    with pytest.raises(EnvironmentFault, match=r"^1 groups in a row failed .* because of: no reason given$"):
        monitor.on_report(report())


def test_metrics_between_two_updates(monitor: Monitor, clock: Clock) -> None:
    clock.now += 10
    monitor.on_report(report(episode(), episode(outcome=0.0, end="turns", tool_errors=3, code_ended=1), errors=("lost",)))
    monitor.on_report(report(errors=("lost", "lost")))
    assert monitor.drain() == pytest.approx(
        {
            "rollout/success": 0.5,
            "rollout/return": 0.9,
            "rollout/turns": 5.0,
            "rollout/sampled_tokens": 40.0,
            "rollout/tool_errors": 2.0,
            "rollout/code_ended": 0.5,
            "rollout/truncated": 0.5,
            "rollout/failed": 3.0,
            "reward/final": 1.0,
            "reward/step_penalty": -0.1,
            "rollout/episodes": 2.0,
            "rollout/tool_calls": 8.0,
            "rollout/tokens_per_s": 8.0,
            "time/elapsed": 10.0,
        }
    )
    again = monitor.drain()
    assert again.pop("rollout/failed") == 0.0
    assert set(again) == {"rollout/episodes", "rollout/tool_calls", "rollout/tokens_per_s", "time/elapsed"}


def test_failed_episodes_count_even_where_none_finished() -> None:
    assert rollout_metrics([report(errors=("a", "b"))]) == {"rollout/failed": 2.0}


def test_a_component_that_some_episodes_lack_counts_as_nothing_there() -> None:
    metrics = rollout_metrics([report(episode(reward_parts={"final": 1.0}), episode(reward_parts={"tool_use": 0.5}))])
    assert (metrics["reward/final"], metrics["reward/tool_use"]) == (0.5, 0.25)


def test_the_view_follows_reports_updates_and_evaluations(monitor: Monitor, tmp_path: Path) -> None:
    monitor.on_report(report(errors=("lost",)))
    assert (monitor.view.success, monitor.view.episodes) == (None, 0)
    monitor.on_report(report(episode(), episode(outcome=0.0)))
    assert (monitor.view.success, monitor.view.episodes) == (0.5, 2)
    assert monitor.view.reward_parts == pytest.approx({"final": 1.0, "step_penalty": -0.1})
    monitor.on_evaluation({"eval/success": 0.25})
    monitor.on_evaluation({"eval/success": 0.5})
    assert monitor.view.held_out == (0.25, 0.5)
    monitor.on_update(2, {"replay/staleness": 1.5, "replay/trajectories": 64.0, "replay/groups": 8.0})
    view = monitor.view
    assert (view.update, view.kl, view.staleness, view.pool_trajectories, view.pool_groups) == (2, None, 1.5, 64, 8)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 2


def test_a_summary_is_the_trajectory_in_numbers() -> None:
    summary = EpisodeSummary.of(two_turns())
    assert (summary.level, summary.outcome, summary.turns, summary.sampled_tokens, summary.end) == (2, 1.0, 2, 5, "terminated")
    assert summary.total_reward == pytest.approx(sum(summary.reward_parts.values()))


def test_what_an_explorer_played_says_nothing_about_the_policy(monitor: Monitor) -> None:
    fields = {
        "tool_errors": 9,
        "turns": 1,
        "total_reward": -1.0,
        "reward_parts": {"final": -1.0},
        "end": "turns",
        "code_ended": 4,
    }
    explored = [episode(explored=True, outcome=outcome, sampled_tokens=0, **fields) for outcome in (1.0, 0.0)]
    assert rollout_metrics([report(episode(), *explored)]) == rollout_metrics([report(episode())])
    assert rollout_metrics([report(*explored)]) == {"rollout/failed": 0.0}
    monitor.config = parse_config({"exploration": {"rate": 0.5}})
    monitor.on_report(report(episode(), *explored, episode(outcome=0.0)))
    assert (monitor.view.success, monitor.episodes) == (0.5, 4)
    metrics = monitor.drain()
    assert (metrics["exploration/share"], metrics["exploration/success"]) == (0.5, 0.5)
    monitor.on_report(report(episode()))
    metrics = monitor.drain()
    assert metrics["exploration/share"] == 0.0
    assert "exploration/success" not in metrics
    for name in metrics:
        lookup(name)


def test_without_exploration_there_are_no_figures_of_it(monitor: Monitor) -> None:
    monitor.on_report(report(episode()))
    assert not [name for name in monitor.drain() if name.startswith("exploration/")]


def test_words_of_an_agent_are_no_sampled_tokens() -> None:
    summary = EpisodeSummary.of(two_turns(source="demonstration"), explored=True)
    assert (summary.sampled_tokens, summary.explored) == (0, True)
    hotter = EpisodeSummary.of(two_turns(temperature=2.0), explored=True)
    assert (hotter.sampled_tokens, hotter.explored) == (5, True)


def test_held_out_success_per_family_of_a_mix() -> None:
    episodes = [episode(family=family, outcome=outcome) for family, outcome in (("trip", 1.0), ("trip", 0.0), ("data", 1.0))]
    metrics = eval_metrics(episodes)
    assert (metrics["eval/success/trip"], metrics["eval/success/data"]) == (0.5, 1.0)


def test_held_out_success_overall_and_per_level() -> None:
    episodes = [episode(level=level, outcome=outcome) for level, outcome in ((1, 1.0), (1, 0.0), (3, 1.0), (3, 1.0))]
    assert eval_metrics(episodes) == pytest.approx(
        {
            "eval/success": 0.75,
            "eval/success/level1": 0.5,
            "eval/success/level3": 1.0,
            "eval/tool_errors": 1.0,
            "eval/length": 40.0,
        }
    )


def test_hit_rates_per_tool_and_tier(monitor: Monitor) -> None:
    monitor.on_report(report(episode(tiers={("read", "live"): 1, ("read", "exact"): 2, ("search", "exact"): 1})))
    monitor.on_report(report(episode(tiers={("read", "best_effort"): 1, ("search", "normalised"): 3}), episode()))
    metrics = {name: value for name, value in monitor.drain().items() if name.startswith("tool_cache/")}
    assert metrics == {
        "tool_cache/hit_rate": 7 / 8,
        "tool_cache/live": 1 / 8,
        "tool_cache/exact": 3 / 8,
        "tool_cache/normalised": 3 / 8,
        "tool_cache/best_effort": 1 / 8,
        "tool_cache/tool/read/live": 1 / 4,
        "tool_cache/tool/read/exact": 2 / 4,
        "tool_cache/tool/read/normalised": 0.0,
        "tool_cache/tool/read/best_effort": 1 / 4,
        "tool_cache/tool/search/live": 0.0,
        "tool_cache/tool/search/exact": 1 / 4,
        "tool_cache/tool/search/normalised": 3 / 4,
        "tool_cache/tool/search/best_effort": 0.0,
    }
    monitor.writer.write(1, metrics)  # all of them are declared
    monitor.on_report(report(episode()))
    assert not [name for name in monitor.drain() if name.startswith("tool_cache/")]


def test_a_resumed_session_counts_on(monitor: Monitor, clock: Clock) -> None:
    clock.now += 10
    monitor.enter("training")
    clock.now += 5
    monitor.on_report(report(episode(), episode()))
    monitor.on_evaluation({"eval/success": 0.25})
    state = json.loads(json.dumps(monitor.state_dict()))
    assert state["phases"] == {"starting": 10.0, "training": 5.0}
    before = monitor.drain()
    later = Monitor(config=monitor.config, writer=monitor.writer, panel=monitor.panel, view=monitor.view, started=clock.now)
    later.view = replace(monitor.view, phase="starting")
    clock.now += 2
    later.load_state_dict(state)
    assert later.elapsed_s == 17.0
    clock.now += 3
    later.enter("training")
    clock.now += 1
    later.close()
    assert later.phases == {"starting": 15.0, "training": 6.0}
    assert (later.held_out, later.view.held_out, later.view.episodes) == ([0.25], (0.25,), 2)
    counted = {name: value for name, value in before.items() if name in ("rollout/episodes", "rollout/tool_calls")}
    assert len(counted) == 2
    assert counted.items() <= later.drain().items()
