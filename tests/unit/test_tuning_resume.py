"""What Ray Tune is told when a search begins, and when it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.tuning.actor import TrialActor, TrialSpec
from deploy.tuning.evaluations import TrialFailed
from deploy.tuning.ledger import Trial
from deploy.tuning.search import make_algorithm, make_scheduler
from deploy.tuning.settings import Search, TuneSettings, check_search
from support import PROJECT

SMOKE = PROJECT / "deploy/configs/smoke.yaml"
LISTS = {"reward.tool_use": [0.0, 0.12, 0.4], "env.levels": [[1], [1, 2]]}
FINISHED = Trial(
    trial_id="a",
    point={"reward.tool_use": 0.12, "env.levels": [1]},
    updates=[1, 3, 9],
    values=[0.1, 0.2, 0.5],
    status="finished",
)
FAILED = Trial(trial_id="b", point={"reward.tool_use": 0.4, "env.levels": [1]}, status="failed")
CUT = Trial(trial_id="c", point={"reward.tool_use": 0.0, "env.levels": [1, 2]}, updates=[1], values=[0.9])


def search_of(**settings: Any) -> Search:
    return check_search(
        TuneSettings.model_validate({"space": LISTS, **settings}),
        config=SMOKE,
        overrides=["run.updates=9"],
        name="s",
        objective="tune_objective:climbing",
    )


def test_a_grid_tries_what_has_not_ended() -> None:
    search = search_of(search="grid")
    assert len(make_algorithm(search, [])["param_space"]["point"]["grid_search"]) == 6  # type: ignore[index]
    left = make_algorithm(search, [FINISHED, FAILED, CUT])["param_space"]["point"]["grid_search"]  # type: ignore[index]
    assert [search.space.decode(codes) for codes in left] == [
        {"reward.tool_use": 0.0, "env.levels": [1]},
        {"reward.tool_use": 0.0, "env.levels": [1, 2]},
        {"reward.tool_use": 0.12, "env.levels": [1, 2]},
        {"reward.tool_use": 0.4, "env.levels": [1, 2]},
    ]
    done = [Trial(trial_id=str(number), point=point, status="finished") for number, point in enumerate(search.space.grid())]
    assert make_algorithm(search, done) is None


def test_optuna_knows_what_ended_and_begins_with_what_was_interrupted() -> None:
    search = search_of(trials=5)
    chosen = make_algorithm(search, [FINISHED, FAILED, CUT])
    assert chosen is not None
    assert chosen["num_samples"] == 3
    algorithm = chosen["search_alg"]
    assert algorithm.suggest("next") == {"point": {"reward.tool_use": 0, "env.levels": 1}}
    known = [(trial.state.name, trial.value, trial.params) for trial in algorithm._ot_study.trials[1:]]
    assert known == [
        ("COMPLETE", 0.5, {"point/reward.tool_use": 1, "point/env.levels": 0}),
        ("FAIL", None, {"point/reward.tool_use": 2, "point/env.levels": 0}),
    ]
    assert make_algorithm(search_of(trials=2), [FINISHED, FAILED, CUT]) is None


def test_early_stopping_knows_the_evaluations_of_what_ended() -> None:
    scheduler = make_scheduler(search_of(), [FINISHED, FAILED, CUT])
    assert scheduler._brackets[0]._rungs == [(9.0, {}), (3.0, {"a": 0.2}), (1.0, {"a": 0.1})]
    assert make_scheduler(search_of(early_stopping={"enabled": False}), []) is None


def test_an_actor_reports_each_evaluation_then_the_end_and_takes_the_next_trial(tmp_path: Path) -> None:
    spec = TrialSpec(search=search_of(), address="", folder=tmp_path)

    class Actor(TrialActor):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config, spec)

    def step() -> tuple[Any, ...]:
        result = actor.train()
        return tuple(result.get(key) for key in ("update", "rung", "value", "status", "done"))

    actor = Actor(config={"point": {"reward.tool_use": 1, "env.levels": 0}})
    steps = [step() for _ in range(10)]
    assert steps[0] == (1, 1, pytest.approx(0.99 / 9), None, False)  # smoke.yaml's step penalty is not quite the best
    assert steps[8:] == [
        (9, None, pytest.approx(0.99), None, False),  # no rung: what is through is not stopped
        (9, None, pytest.approx(0.99), "finished", True),
    ]
    actor.reset({"point": {"reward.tool_use": 2, "env.levels": 0}})
    assert step() == (None, None, None, "failed", True)
    actor.stop()


def test_a_config_that_was_changed_meanwhile_fails_the_trial(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("run: {updates: 9}\n")
    settings = TuneSettings.model_validate({"space": {"reward.tool_use": [0.1]}})
    search = check_search(settings, config=config, overrides=[], name="s", objective="tune_objective:planted")
    config.write_text("run: {updates: 10}\n")
    evaluations = TrialSpec(search=search, address="", folder=tmp_path).evaluations({"reward.tool_use": 0}, "t")
    with pytest.raises(TrialFailed, match=r"config\.yaml was changed since the search began"):
        next(evaluations)
