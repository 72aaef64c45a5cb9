"""Settings of the reward that are refused, and user components."""

from __future__ import annotations

from typing import Any

import pytest

from cacherl.errors import ConfigError
from cacherl.trajectory import ToolCall
from reward_data import calls, episode, good, run_config, says
from rewards.composer import Composer


def composer(reward: dict[str, Any], turns: int = 10) -> Composer:
    return Composer.from_config(run_config(reward, env={"max_turns": turns}))


@pytest.mark.parametrize(
    ("reward", "turns", "message"),
    [
        ({"tool_use": 0.101}, 10, r"can earn 1.01 in env.max_turns 10 turns \(tool_use 1.01\), success is worth 1; lower"),
        ({"tool_use": 0.06, "result_utilization": 0.05}, 10, r"can earn 1.05 .*\(tool_use 0.6, result_utilization 0.45\)"),
        ({"step_penalty": -0.11}, 10, r"can take from a faultless episode 1.1 .*\(step_penalty 1.1\)"),
        ({"step_penalty": -0.04, "adaptive": {"rate": 0.1}}, 10, r"1.2 .*\(step_penalty 1.2\)"),
        ({"step_penalty": -0.5, "normalize": ["step_penalty"], "adaptive": {"rate": 0.1}}, 10, r"1.5 .*\(step_penalty 1.5\)"),
        ({"cost": {"call": -1, "cap": 0.9}}, 10, r"1.1 .*\(step_penalty 0.2, tool_cost 0.9\)"),
        ({"success": 0.4, "failure": -0.05}, 10, r"can earn 0.5 .* success is worth 0.45"),
        ({"tool_use": 0.2, "tiers": {"enabled": True}}, 10, r"can earn 0.8 .*\(tool_use 0.8\), success is worth 0.6"),
        (
            {"components": [{"path": "reward_data.spends", "name": "s", "weight": -0.06, "settings": {"share": 1}}]},
            10,
            r"can earn 1.1 .*\(tool_use 0.5, s 0.6\)",
        ),
    ],
)
def test_what_could_outweigh_success_is_refused_unless_it_is_accepted(reward, turns, message):
    with pytest.raises(ConfigError, match=message):
        composer(reward, turns)
    composer({**reward, "allow_domination": True}, turns)


@pytest.mark.parametrize(
    "reward",
    [
        {"tool_use": 0.1},
        {"tool_misuse": -5.0},
        {"step_penalty": -0.1},
        {"step_penalty": -0.03, "adaptive": {"rate": 0.1}},
        {"format": {"repair": -1, "invalid": -3}},
        {"tool_use": 0.1, "normalize": ["tool_use"], "step_penalty": -0.1},
        {"tool_use": 0.15, "tiers": {"enabled": True}},
    ],
)
def test_what_cannot_is_accepted(reward):
    composer(reward)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"failure": 1.0}, r"reward: success 1.0 must exceed failure 1.0"),
        (
            {"normalize": ["final"]},
            r"normalize \['final'\] must be auxiliary parts with a weight: \['step_pen.*', 'tool_use'\]",
        ),
        ({"normalize": ["latency"]}, r"normalize \['latency'\]"),
        ({"components": [{"path": "a.b", "name": "tool_use", "weight": 1}]}, r"names \['tool_use'\] are taken"),
        ({"components": [{"path": "a.b", "name": "judge_missing", "weight": 1}]}, r"names \['judge_missing'\] are taken"),
        ({"components": [{"path": "nodots", "name": "x", "weight": 1}]}, r"reward.components.0.path: String should match"),
        ({"adaptive": {"rate": 0.1}, "step_penalty": 0}, r"adaptive.rate 0.1 has no step_penalty to adapt"),
        ({"adaptive": {"limit": 2}}, r"limit 2.0 has no effect without reward.adaptive.rate above 0"),
        ({"tiers": {"exact": 0.5}}, r"exact 0.5 has no effect without reward.tiers.enabled"),
        ({"overlong": {"buffer": 5}}, r"buffer 5 has no effect without reward.overlong.penalty"),
        ({"cost": {"cap": 0.5}}, r"cap 0.5 has no effect without"),
        ({"utilization_rule": "environment"}, r"has no effect without reward.result_utilization"),
        ({"judge": {"model": "m"}}, r"model m has no effect without reward.judge.weight above 0"),
        ({"judge": {"weight": 0.1}}, r"weight 0.1 needs model"),
        ({"judge": {"weight": 0.1, "model": "m"}}, r"backend 'endpoint' and url None contradict"),
        ({"judge": {"weight": 0.1, "model": "m", "backend": "local", "url": "http://h"}}, r"'local' and url 'http://h' contra"),
        ({"step_penalty": 0.1}, r"reward.step_penalty: Input should be less than or equal to 0"),
        ({"colour": 1}, r"reward.colour: unknown key"),
    ],
)
def test_settings_that_say_nothing_or_contradict_each_other(reward, message):
    with pytest.raises(ConfigError, match=message):
        run_config(reward)


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        ("group", "over a whole trajectory shaping adds up to minus the first state's potential, the same for all of a group"),
        ("loo", "over a whole trajectory shaping adds up to minus the first state's potential, the same for all of a group"),
        ("gigpo", "it compares equal states, whose potential is the same"),
    ],
)
def test_shaping_is_refused_where_it_changes_nothing_and_the_reason_is_given(estimator, reason):
    with pytest.raises(
        ConfigError, match=rf"reward.shaping 0.5 changes nothing with advantage.estimator {estimator}: {reason};"
    ):
        run_config({"shaping": 0.5}, advantage={"estimator": estimator})


def test_shaping_goes_by_the_critic_s_discount():
    """gamma 0.9: from potential 0.5 to 0.75 is 0.9 * 0.75 - 0.5 = 0.175, and the end -0.75."""
    config = run_config({"shaping": 1.0}, advantage={"estimator": "gae", "gamma": 0.9})
    (scored,) = Composer.from_config(config).score([episode(says("", potential=0.5), says("", potential=0.75))])
    assert [turn.rewards["shaping"] for turn in scored.turns] == pytest.approx([0.175, -0.75])


def user(name: str, weight: float = 0.1, **settings: Any) -> dict[str, Any]:
    part = {"path": f"reward_components_of_users.{name}", "name": "mine", "weight": weight, "settings": settings}
    return {"components": [part], "step_penalty": 0, "tool_use": 0, "tool_misuse": 0}


def test_a_class_with_settings_values_turns_and_trajectories():
    played = episode(calls(good()), says("hm"), outcome=1.0)
    (scored,) = composer(user("Brevity", 0.5, limit=4, fine=0.2)).score([played])
    assert [dict(turn.rewards) for turn in scored.turns] == [{"mine": 0.0}, {"mine": -0.1}]
    assert scored.rewards == {"final": 1.0, "mine": 0.25}
    assert scored.reward_parts["mine"] == pytest.approx(0.15)


def test_a_user_s_values_are_clipped_to_one_before_they_are_weighed():
    for outcome, value in ((1.0, 0.1), (0.0, -0.1)):
        (scored,) = composer(user("Wild")).score([episode(calls(), outcome=outcome)])
        assert scored.rewards["mine"] == pytest.approx(value)


def test_what_a_user_component_says_it_reaches_counts():
    composer(user("Brevity", 0.99, limit=4))
    with pytest.raises(ConfigError, match=r"can earn 1.01 .*\(mine 1.01\)"):
        composer(user("Brevity", 1.01, limit=4))
    with pytest.raises(ConfigError, match=r"can take from a faultless episode 1.01 .*\(mine 1.01\)"):
        composer(user("Brevity", -1.01, limit=4))


@pytest.mark.parametrize("action", ["0", "1", "2"])
def test_a_value_that_is_no_finite_number_is_an_error_that_names_the_component(action):
    with pytest.raises(ValueError, match=r"reward component mine returned (nan|None|True), must be a finite number"):
        composer(user("wild", 0.01)).score([episode(says(action))])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Absent", {}, r"mine: reward_components_of_users.Absent cannot be imported: .* has no attribute 'Absent'"),
        ("Brevity", {}, r"Brevity\(\*\*\{\}\): .*missing 1 required positional argument: 'limit'"),
        ("Brevity", {"limit": 0}, r"limit must be positive"),
        ("Unstable", {}, r"Unstable\(\*\*\{\}\): KeyError\('unknown'\)"),
        (
            "wild",
            {"bogus": 1},
            r"turn\(step\) .* must be a plain function of one argument, settings apart: got an unexpected keyword argument",
        ),
        ("without_arguments", {}, r"must be a plain function of one argument, settings apart: too many positional arguments"),
        ("later", {}, r"must be a plain function of one argument, settings apart: it is <function later"),
        ("Reaching", {"what": "1"}, r"reach\(\d+\) of .*Reaching must return a Reach: AttributeError"),
        ("Reaching", {"what": "Reach(gain=-9)"}, r"Reach: gain must be a finite number from 0 on, got -9"),
        ("Reaching", {"what": "Reach(toll=float('nan'))"}, r"Reach: toll must be a finite number from 0 on, got nan"),
        ("READY", {"fine": 1}, r"READY is an object; only a class or function takes settings"),
        ("Nothing", {}, r"Nothing has no turn\(step\) and no trajectory\(trajectory\)"),
    ],
)
def test_a_component_that_cannot_be_made_is_a_setting_to_change(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        composer(user(name, **settings))


def test_a_module_with_an_error_in_it_is_a_setting_to_change(tmp_path, monkeypatch):
    (tmp_path / "module_with_an_error.py").write_text("def turn(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"mine: module_with_an_error.turn cannot be imported: SyntaxError"):
        composer({"components": [{"path": "module_with_an_error.turn", "name": "mine", "weight": 0.01}]})


@pytest.mark.parametrize(("kind", "value"), [("float32", 0.5), ("float64", 0.5), ("int64", 1)])
def test_numbers_of_numpy_are_numbers(kind, value):
    (scored,) = composer(user("of_numpy", 0.01, kind=kind)).score([episode(says(str(value)))])
    assert dict(scored.turns[0].rewards) == {"mine": pytest.approx(0.01 * value)}


@pytest.mark.parametrize(("action", "what"), [("raises", r"raised ZeroDivisionError"), ("huge", r"raised OverflowError")])
def test_a_component_that_raises_is_named(action, what):
    with pytest.raises(ValueError, match=rf"reward component mine {what}"):
        composer(user("wild", 0.01)).score([episode(says(action))])


def test_a_class_that_is_called_is_a_turn_and_gets_its_settings_once():
    (scored,) = composer(user("Called", 0.01, share=0.5)).score([episode(says(""))])
    assert dict(scored.turns[0].rewards) == {"mine": 0.005}


def test_a_component_that_says_it_waits_is_called_off_the_event_loop():
    assert composer(user("Waiting", 0.01)).blocking
    assert not composer(user("Called", 0.01, share=0.5)).blocking


def test_a_component_cannot_change_what_it_values():
    played = episode(calls(ToolCall(name="read", arguments={"rows": [1]}, ok=True)))
    (scored,) = composer(user("Meddler", 0.01)).score([played])
    assert scored.turns[0].calls[0].arguments == played.turns[0].calls[0].arguments == {"rows": [1]}
    with pytest.raises(ValueError, match=r"mine raised ValueError\('assignment destination is read-only'\)"):
        composer(user("Meddler", 0.01, arrays=True)).score([played])
    assert played.token_ids.flags.writeable


def test_a_run_that_its_reward_rules_out_leaves_an_earlier_one_untouched(tmp_path):
    from deploy.launch import run_training

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    config = run_config({"tool_use": 0.5}, run={"dir": str(tmp_path), "if_exists": "replace"})
    with pytest.raises(ConfigError, match=r"the other parts can earn 8 in env\.max_turns 16 turns"):
        run_training(config)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["summary.json"]
