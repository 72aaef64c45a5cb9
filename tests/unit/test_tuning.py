"""A search before and after Ray Tune: its space, its checks, its ledger, what it shows."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from cacherl.config import RunConfig, load_config, parse_config
from cacherl.errors import ConfigError
from deploy.cli import app
from deploy.tuning.capacity import concurrency, largest, needs
from deploy.tuning.evaluations import Evaluation, TrainingRun, TrialFailed, objective_evaluations
from deploy.tuning.ledger import Ledger, Trial
from deploy.tuning.page import write_page
from deploy.tuning.results import best, ranked, table, train_command, write_json
from deploy.tuning.settings import Search, TuneSettings, check_search, load_settings
from deploy.tuning.space import Range, Values, as_overrides, parse_axes, parse_space
from support import PROJECT
from tune_objective import climbing, planted

SMOKE = PROJECT / "deploy/configs/smoke.yaml"


def search_of(tmp_path: Path, *overrides: str, objective: str | None = None, **settings: Any) -> Search:
    raw = {"space": {"reward.tool_use": [0.0, 0.1], "learner.lr": [1e-4, 1e-3]}, **settings}
    return check_search(
        TuneSettings.model_validate(raw),
        config=SMOKE,
        overrides=[f"run.dir={tmp_path}", *overrides],
        name="s",
        objective=objective,
    )


def test_axes_of_a_command_line_are_yaml() -> None:
    axes = parse_axes(["learner.lr={low: 1e-5, high: 1e-3, log: true}", "env.levels=[[1], [1, 2]]", "env.name=[trip, data]"])
    assert axes == {
        "learner.lr": {"low": 1e-5, "high": 1e-3, "log": True},
        "env.levels": [[1], [1, 2]],
        "env.name": ["trip", "data"],
    }
    for text, message in (("learner.lr", "must have the form"), ("learner.lr=[1", "is not YAML")):
        with pytest.raises(ConfigError, match=message):
            parse_axes([text])


def test_axes_take_their_kind_from_the_value_and_the_key() -> None:
    raw = {
        "reward.tool_use": [0, 0.5],
        "learner.lr": {"low": 1e-5, "high": 1e-3, "log": True},
        "learner.epochs": {"low": 1, "high": 4},
        "reward.success": {"low": 1, "high": 4},
    }
    space = parse_space(raw, RunConfig())
    assert space.axes == {
        "reward.tool_use": Values(values=(0, 0.5)),
        "learner.lr": Range(low=1e-5, high=1e-3, log=True),
        "learner.epochs": Range(low=1, high=4, integer=True),
        "reward.success": Range(low=1, high=4),
    }


@pytest.mark.parametrize(
    ("key", "axis", "message"),
    [
        ("run.dir", ["a"], r"^run\.dir: the search sets this key"),
        ("learner.lr", [], r"^learner\.lr: an axis needs at least one value"),
        ("learner.lr", 0.1, r"^learner\.lr: an axis is a list of values or .* got 0\.1$"),
        ("learner.lr", {"low": 1}, r"^learner\.lr: an axis is a list"),
        ("learner.lr", {"low": "a", "high": 1}, r"^learner\.lr: low must be a number, got 'a'$"),
        ("learner.lr", {"low": 1, "high": 1}, r"^learner\.lr: low 1 must be below high 1$"),
        ("learner.lr", {"low": 0, "high": 1, "log": True}, r"^learner\.lr: low 0 must be above 0 on a logarithmic axis$"),
        ("learner.lr", {"low": 0, "high": 1, "log": "yes"}, r"^learner\.lr: log must be true or false, got 'yes'$"),
    ],
)
def test_axes_that_are_none_are_refused(key: str, axis: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_space({key: axis}, RunConfig())


def test_a_grid_is_every_combination_and_points_survive_their_codes(tmp_path: Path) -> None:
    space = search_of(tmp_path).space
    assert space.grid() == [
        {"reward.tool_use": 0.0, "learner.lr": 1e-4},
        {"reward.tool_use": 0.0, "learner.lr": 1e-3},
        {"reward.tool_use": 0.1, "learner.lr": 1e-4},
        {"reward.tool_use": 0.1, "learner.lr": 1e-3},
    ]
    for point in space.grid():
        assert space.decode(space.encode(point)) == point
    with pytest.raises(ValueError, match="not in tuple"):
        space.encode({"reward.tool_use": 0.2, "learner.lr": 1e-4})
    assert Range(low=1, high=4, integer=True).encode(3) == 3
    assert Range(low=0.12344, high=4).decode(0.12344) == 0.12344, "rounding leaves no range"
    assert Range(low=0.1, high=4).decode(1.234567) == 1.235
    with pytest.raises(ValueError, match="5 is not within 1 and 4"):
        Range(low=1, high=4).encode(5)


def test_distributions_are_those_of_the_axes() -> None:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    assert Values(values=([1], [2])).distribution() == CategoricalDistribution((0, 1))
    assert Range(low=1, high=4, integer=True).distribution() == IntDistribution(1, 4)
    assert Range(low=0.1, high=4, log=True).distribution() == FloatDistribution(0.1, 4, log=True)


def test_a_trial_is_the_base_with_its_point(tmp_path: Path) -> None:
    search = search_of(tmp_path, "run.seed=7")
    config = search.load({"reward.tool_use": 0.1, "env.levels": [2]}, "run.name=t")
    assert (config.reward.tool_use, config.env.levels, config.run.seed, config.run.name) == (0.1, (2,), 7, "t")
    assert search.folder == tmp_path.resolve() / "s"
    assert as_overrides({"env.name": "trip", "run.stop_at_success": None}) == ['env.name="trip"', "run.stop_at_success=null"]
    assert load_config(None, as_overrides({"learner.lr": 1e-05, "run.stop_at_success": None})).learner.lr == 1e-5


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"reward.toool_use": [1]}, r"^search space: reward\.toool_use: unknown key"),
        ({"nothing.here": [1]}, r"^search space: nothing: unknown key"),
        ({"reward.tool_use": [0.1, -1]}, r"^search space: reward\.tool_use: .* greater than or equal to 0 \(got -1\)$"),
        ({"reward.tool_use": {"low": -1, "high": 1}}, r"^search space: reward\.tool_use: .* \(got -1\)$"),
        ({"learner.batch_size": [64, 63]}, r"^search space: with learner\.batch_size=63: .* multiple of rollout\.group_size 4"),
        ({"learner.batch_size": [64, 24], "rollout.group_size": [4, 16]}, r"batch_size=24 rollout\.group_size=16: .* multiple"),
        ({}, r"^the search space is empty"),
    ],
)
def test_what_no_trial_could_have_is_refused_with_its_field(tmp_path: Path, space: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search_of(tmp_path, space=space)


def test_values_that_are_right_only_together_are_taken(tmp_path: Path) -> None:
    search = search_of(tmp_path, space={"learner.batch_size": [10], "rollout.group_size": [5]})
    assert search.load(search.space.grid()[0]).learner.batch_size == 10


@pytest.mark.parametrize(
    ("overrides", "settings", "message"),
    [
        (["replay.namespace=x"], {}, "trials would share a pool"),
        ([], {"metric": "eval/nothing"}, "metric: 'eval/nothing' is no metric"),
        ([], {"early_stopping": {"min_updates": 4}}, r"min_updates 4 must not exceed run\.updates 3"),
        ([], {"search": "grid", "space": {"learner.lr": {"low": 0.1, "high": 1}}}, r"^learner\.lr: a grid needs listed values"),
        ([], {"objective": "tune_objective:absent"}, "--objective 'tune_objective:absent' cannot be loaded"),
        ([], {"objective": "tune_objective"}, "must be a path"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tmp_path: Path, overrides: list[str], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        search_of(tmp_path, *overrides, **settings)


def test_settings_come_from_the_file_then_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("search: grid\ntrials: 5\nspace:\n  learner.lr: [1e-4]\n  reward.tool_use: [0.1]\n")
    changes = {"search": None, "trials": 7, "concurrency": None}
    settings = load_settings(file, changes, {"learner.lr": [1e-3], "kl.coef": [0.0]})
    assert (settings.search, settings.trials, settings.concurrency) == ("grid", 7, None)
    assert settings.space == {"learner.lr": [1e-3], "reward.tool_use": [0.1], "kl.coef": [0.0]}
    with pytest.raises(ConfigError, match=r"^search settings: search: Input should be 'grid' or 'bayes' \(got 'random'\)"):
        load_settings(None, {"search": "random"}, {})
    with pytest.raises(ConfigError, match="--space: no file at"):
        load_settings(tmp_path / "absent.yaml", {}, {})
    file.write_text("trails: 5\n")
    with pytest.raises(ConfigError, match=r"trails: Extra inputs are not permitted"):
        load_settings(file, {}, {})


def test_as_many_trials_as_the_cluster_holds(tmp_path: Path) -> None:
    axes = {"actors.count": [1, 3], "learner.lr": [1e-4, 1e-3]}
    search = search_of(tmp_path, space=axes)
    assert largest(search).actors.count == 3
    gib = 2**30
    assert needs(largest(search)) == {"CPU": 4.0, "GPU": 0.0, "memory": gib * (3 * 2.5 + 2 * 1.5)}
    assert concurrency(search, {"CPU": 9.0, "memory": 100.0 * gib}) == 2
    assert concurrency(search, {"CPU": 40.0, "memory": 32.0 * gib}) == 3
    assert concurrency(search, {"CPU": 40.0, "memory": 1.0 * gib}) == 1
    with pytest.raises(ConfigError, match="has 2 CPUs and 0 GPUs, a trial needs 4 and 0, so 0 fit at a time, not 1"):
        concurrency(search, {"CPU": 2.0, "memory": 32.0 * gib})
    assert concurrency(search_of(tmp_path, concurrency=1), {"CPU": 9.0, "memory": 100.0 * gib}) == 1
    with pytest.raises(ConfigError, match="so 4 fit at a time, not 5"):
        concurrency(search_of(tmp_path, concurrency=5), {"CPU": 9.0, "memory": 100.0 * gib})
    assert concurrency(search_of(tmp_path, objective="tune_objective:planted"), {"CPU": 9.0}) == 9


def test_the_ledger_reads_back_what_happened_and_forgives_a_torn_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "trials.jsonl")
    assert ledger.trials() == []
    ledger.started("a", {"learner.lr": 1e-3})
    ledger.evaluated("a", update=0, value=0.25, seconds=1.0)
    ledger.started("b", {"learner.lr": 1e-4})
    ledger.evaluated("a", update=2, value=0.5, seconds=3.0)
    ledger.ended("a", "finished")
    ledger.ended("b", "failed", "out of memory")
    ledger.started("c", {"learner.lr": 1e-5})
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"event": "evalu')
    assert ledger.trials() == [
        Trial(trial_id="a", point={"learner.lr": 1e-3}, updates=[0, 2], values=[0.25, 0.5], seconds=3.0, status="finished"),
        Trial(trial_id="b", point={"learner.lr": 1e-4}, status="failed", error="out of memory"),
        Trial(trial_id="c", point={"learner.lr": 1e-5}),
    ]


def test_a_search_that_goes_on_after_a_torn_line_loses_nothing_of_its_own(tmp_path: Path) -> None:
    """What is written after the line that a killed search left unfinished must not become a part of it."""
    (tmp_path / "trials.jsonl").write_text('{"event": "started", "trial": "a", "poi')
    ledger = Ledger(tmp_path / "trials.jsonl")
    ledger.started("b", {"learner.lr": 1e-4})
    ledger.evaluated("b", update=1, value=0.5, seconds=1.0)
    assert ledger.trials() == [Trial(trial_id="b", point={"learner.lr": 1e-4}, updates=[1], values=[0.5], seconds=1.0)]


def point(tool_use: float, lr: float = 1e-4) -> dict[str, float]:
    return {"reward.tool_use": tool_use, "learner.lr": lr}


TRIALS = [
    Trial(trial_id="low", point=point(0.0), updates=[0, 9], values=[0.1, 0.2], status="finished"),
    Trial(trial_id="broken", point=point(0.0, 1e-3), status="failed", error="no <memory>\nat all"),
    Trial(trial_id="cut", point=point(0.1), updates=[0], values=[0.1]),
    Trial(trial_id="high", point=point(0.1), updates=[0, 9], values=[0.1, 0.8], seconds=65.0, status="finished"),
    Trial(trial_id="early", point=point(0.1, 1e-3), updates=[3], values=[0.9], status="stopped"),
]


def test_the_best_is_the_best_that_ran_to_its_end() -> None:
    assert [trial.trial_id for trial in ranked(TRIALS, "max")] == ["early", "high", "low", "broken"]
    assert [trial.trial_id for trial in ranked(TRIALS, "min")] == ["low", "high", "early", "broken"]
    assert best(TRIALS, "max") is TRIALS[3]
    assert best(TRIALS, "min") is TRIALS[0]
    assert best(TRIALS[1:3], "max") is None
    assert [trial.trial_id for trial in ranked(TRIALS[1:3], "max")] == ["cut", "broken"]


def test_table_json_and_page(tmp_path: Path) -> None:
    search = search_of(tmp_path)
    search.folder.mkdir()
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(table(search, TRIALS))
    rows = [
        re.split(r"\s*[│┃]\s*", line.strip("│┃ ")) for line in console.export_text().splitlines() if re.search("[│┃]", line)
    ]
    assert rows == [
        ["trial", "reward.tool_use", "learner.lr", "first", "eval/success", "update", "status", "time"],
        ["early", "0.1", "0.001", "0.9", "0.9", "3", "stopped", "00:00"],
        ["high", "0.1", "0.0001", "0.1", "0.8", "9", "finished", "01:05"],
        ["low", "0", "0.0001", "0.1", "0.2", "9", "finished", "00:00"],
        ["broken", "0", "0.001", "-", "-", "-", "failed: no <memory>", "00:00"],
    ]
    content = json.loads(write_json(search, TRIALS).read_text())
    assert content["best"] == {"trial_id": "high", "value": 0.8, "point": point(0.1)}
    assert [trial["value"] for trial in content["trials"]] == [0.9, 0.8, 0.2, None]
    page = re.sub(r"<script>.*?</script>", "", write_page(search, TRIALS).read_text("utf-8"), count=1, flags=re.DOTALL)
    command = f"cacherl train --config {SMOKE} run.dir={tmp_path} reward.tool_use=0.1 learner.lr=0.0001"
    assert train_command(search, TRIALS[3]) == command
    assert command in page
    assert "failed: no &lt;memory&gt;" in page
    assert '"y":[0.1,0.8]' in page
    assert page.count("Plotly.newPlot") == 3
    assert not re.search(r"""(src|href)\s*=\s*["'](https?:)?//""", page)
    assert "No trial ran to its end." in write_page(search, TRIALS[1:3]).read_text("utf-8")


def test_the_command_that_trains_again_survives_a_shell(tmp_path: Path) -> None:
    values = {"env.levels": [1, 2], "reward.utilization_rule": "text"}
    command = train_command(search_of(tmp_path), Trial(trial_id="a", point=values))
    assert shlex.split(command)[-2:] == ["env.levels=[1, 2]", 'reward.utilization_rule="text"']


def test_a_search_may_have_a_number_for_a_name(tmp_path: Path) -> None:
    settings = load_settings(None, {"search": "grid"}, {"run.seed": [0, 1]})
    search = check_search(settings, config=SMOKE, overrides=[f"run.dir={tmp_path}"], name="2024")
    assert search.folder == tmp_path / "2024"


def test_the_weight_of_a_component_of_one_s_own_is_an_axis(tmp_path: Path) -> None:
    part = 'reward.components=[{"path": "reward_data.spends", "name": "mine", "weight": 0.01, "settings": {"share": 1}}]'
    settings = load_settings(None, {"search": "grid"}, {"reward.components.0.weight": [0.02, 0.03]})
    search = check_search(settings, config=SMOKE, overrides=[part, f"run.dir={tmp_path}"], name="t")
    assert [search.load(found).reward.components[0].weight for found in search.space.grid()] == [0.02, 0.03]


def test_an_objective_gives_a_number_or_one_an_update(tmp_path: Path) -> None:
    config = parse_config({"reward": {"tool_use": 0.12, "step_penalty": -0.03}, "run": {"updates": 4}})
    assert list(objective_evaluations(planted, config)) == [Evaluation(update=4, value=1.0)]
    assert list(objective_evaluations(lambda _: np.float32(0.5), config)) == [Evaluation(update=4, value=0.5)]
    climb = list(objective_evaluations(climbing, config))
    assert climb == [Evaluation(update=update, value=update / 4) for update in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda config: "high", "gave 'high', not a finite number"),
        (lambda config: float("nan"), "gave nan, not a finite number"),
        (lambda config: iter(()), "gave no value"),
        (lambda config: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_an_objective_that_gives_nothing_fails_its_trial(function: Any, message: str) -> None:
    with pytest.raises(TrialFailed, match=message):
        list(objective_evaluations(function, RunConfig()))


def test_a_run_that_fails_says_what_it_said(tmp_path: Path) -> None:
    """`cacherl train` refuses the config; no Ray is started."""
    run = TrainingRun(
        config=SMOKE,
        overrides=["learner.lr=-1", f"run.dir={tmp_path}", "run.name=t"],
        run_dir=tmp_path / "t",
        metric="eval/success",
        output=tmp_path / "logs" / "t.log",
        address="",
        folder=PROJECT,
        stopping=tmp_path / "stopping",
    )
    with pytest.raises(TrialFailed, match=r"^exit status 2: error: learner\.lr: .*greater than or equal to 0"):
        list(run.evaluations())


@pytest.mark.parametrize("file", sorted((PROJECT / "deploy/searches").glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_searches_fit_the_demo(file: Path) -> None:
    settings = load_settings(file, {}, {})
    search = check_search(settings, config=PROJECT / "deploy/configs/demo.yaml", overrides=[], name="s")
    assert search.space.axes
    assert search.min_updates <= search.base.run.updates


def test_a_folder_with_a_search_in_it_is_not_overwritten(tmp_path: Path) -> None:
    command = ["tune", "--config", str(SMOKE), "--axis", "learner.lr=[1e-4]", "--name", "s", f"run.dir={tmp_path}"]

    def refusal(*options: str) -> str:
        error = CliRunner().invoke(app, [*command, *options]).exception
        assert isinstance(error, ConfigError)
        return str(error)

    assert refusal("--resume") == f"--resume: {tmp_path}/s holds no search"
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "search.yaml").write_text("{}")
    assert "s holds an earlier search: --resume goes on with it, --name takes another folder" in refusal()
    assert refusal("--resume").endswith("config, settings changed")
