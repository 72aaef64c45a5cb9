"""Several families in one run: tasks by weight, each with its own world, tools and curriculum."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from cacherl.config import RunConfig, parse_config
from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError, EnvironmentFault
from cacherl.metrics import lookup
from deploy.shipping import modules_to_ship
from deploy.tasks import TaskStream, draw_task, held_out_tasks
from envs.agents import OracleAgent
from envs.check import check_source
from envs.episode import play
from envs.mix import mixture, parts_of
from envs.registry import build_source, load_source
from fakes import group_report

MIX = "research*3+trip"
SECTION = EnvSection(name=MIX)


def config(**sections: object) -> RunConfig:
    return parse_config({"env": {"name": MIX}, **sections})


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("trip", {"trip": 1.0}),
        ("trip*0.5", {"trip": 0.5}),
        (MIX, {"research": 3.0, "trip": 1.0}),
        ("my.pkg:Env*2+data", {"my.pkg:Env": 2.0, "data": 1.0}),
    ],
)
def test_names_and_weights(name, weights):
    assert mixture(name) == weights


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "trip*zero+data"}, r"the weight of 'trip' must be a positive number up to 1e\+06, got 'zero'"),
        ({"name": "trip*0+data"}, r"the weight of 'trip' must be a positive number up to 1e\+06, got '0'"),
        ({"name": "trip*inf+data"}, r"must be a positive number up to 1e\+06, got 'inf'"),
        ({"name": "trip*1e308+data*1e308"}, r"must be a positive number up to 1e\+06, got '1e308'"),
        ({"name": "trip+trip"}, r"'trip' comes twice; give it a weight, as in 'trip\*2'"),
        ({"name": "trip+tripp"}, "env.name must be one of .*got 'tripp'"),
        ({"name": "research+reports"}, "'reports' and another part of the mix have different tools called 'search'"),
        ({"name": "trip+envs.trip.family:TripFamily"}, "is of family 'trip', as another part of the mix is"),
        ({"name": MIX, "settings": {"size": 3}}, r"one section for each of research, trip, got \['size'\]"),
        ({"name": MIX, "settings": {"trip": {"size": 3}}}, r"env\.settings\.size: the environment has no such setting"),
        ({"name": MIX, "levels": (5, 6)}, "env.levels: 'research' has none of them in split 'train'; leave it out of the mix"),
        ({"name": MIX, "levels": (1, 9)}, r"'mix' has levels \[1, 2, 3, 4, 5, 6\] in split 'train', .*got \[9\]"),
    ],
)
def test_mistakes_are_explained(section, message):
    with pytest.raises(ConfigError, match=message):
        load_source(EnvSection(**section))


def test_tasks_come_by_weight_and_the_levels_of_each_family_alternate():
    source = load_source(SECTION)
    tasks = [draw_task(source, config(), split="train", number=number) for number in range(2000)]
    counts = Counter(task.family for task in tasks)
    assert counts["research"] / 2000 == pytest.approx(0.75, abs=0.03)
    levels = {family: Counter(task.level for task in tasks if task.family == family) for family in counts}
    assert set(levels["research"]) == {1, 2, 3}
    assert set(levels["trip"]) == {1, 2, 3, 4, 5, 6}
    for seen in levels.values():
        assert max(seen.values()) < 1.5 * min(seen.values())
    held_out = held_out_tasks(source, config())
    assert held_out == held_out_tasks(source, config())
    assert {(task.family, task.split) for task in held_out} == {("research", "val"), ("trip", "val")}


def test_a_single_family_draws_what_it_always_drew():
    alone = load_source(EnvSection(name="trip"))
    assert parts_of(alone).keys() == {"trip"}
    settings = parse_config({"env": {"name": "trip", "levels": [3, 1]}, "run": {"seed": 5}})
    task = draw_task(alone, settings, split="train", number=17)
    assert (task.level, task.task_id) == (1, "trip/train/1/1656026364")


async def test_every_task_is_played_in_its_own_world():
    source = load_source(SECTION)
    env = source.make_env()
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step("[ANSWER] done")
    rng = random.Random(1)
    families = set()
    for number in range(30):
        task = source.sample(rng, split="train", level=2)
        families.add(task.family)
        assert source.get(task.task_id) == task
        episode = await play(env, task, OracleAgent(source), rollout_seed=number, max_turns=40)
        assert episode.outcome == 1.0
    assert families == {"research", "trip"}
    await env.reset(source.get("trip/train/1/1"), rollout_seed=0)
    step = await env.step('[TOOL_CALL] search {"name":"velor"} [/TOOL_CALL]')
    assert step.messages[0].content.startswith('{"error":"unknown tool, use flights or')
    await env.close()
    with pytest.raises(ValueError, match="is of none of the families research, trip"):
        source.get("data/train/1/1")


async def test_a_mix_keeps_the_promises():
    findings = await check_source(build_source(SECTION), tasks=3, section=SECTION)
    assert [finding for finding in findings if finding.problem] == []


def test_only_own_environments_of_a_mix_are_shipped(tmp_path, monkeypatch):
    (tmp_path / "mixed_own.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert modules_to_ship(parse_config({"env": {"name": "trip*2+mixed_own:Own"}})) == [str(tmp_path / "mixed_own.py")]


def test_each_family_has_its_own_curriculum():
    stream = TaskStream(load_source(SECTION), config(curriculum={"enabled": True, "window": 4, "revisit": 0}), "run")
    for _ in range(60):
        request = stream()
        success = 1.0 if request.task.family == "trip" else 0.5
        stream.observe(group_report(request.group_id, success, success))
    metrics = stream.metrics()
    assert metrics["curriculum/level/research"] == 1.0
    assert metrics["curriculum/level/trip"] > 1.0
    assert metrics["curriculum/success/research/level1"] == 0.5
    assert "curriculum/level" not in metrics
    for name in metrics:
        lookup(name)
    other = TaskStream(load_source(SECTION), config(curriculum={"enabled": True, "window": 4, "revisit": 0}), "run")
    other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert other.metrics() == metrics
    assert [other().task for _ in range(10)] == [stream().task for _ in range(10)]
