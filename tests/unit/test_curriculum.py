"""The level follows success, review and revisits follow variance, and the state survives a restart."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from cacherl.config import RunConfig, load_config, parse_config
from cacherl.environment_settings import CurriculumSection
from cacherl.errors import ConfigError
from cacherl.metrics import lookup
from deploy.curriculum import Choice, Curriculum
from deploy.tasks import TaskStream
from envs.base import Task, TaskSource
from fakes import group_report
from fakes import task as fake_task


def curriculum(levels: tuple[int, ...] = (1, 2, 3), **section: Any) -> Curriculum:
    return Curriculum(CurriculumSection(enabled=True, window=4, **section), levels, family="fake", seed=7)


def task(level: int, number: int = 0) -> Task:
    given = fake_task(number)
    return Task(
        task_id=f"fake/train/{level}/{number}",
        family="fake",
        split="train",
        level=level,
        seed=number,
        messages=given.messages,
    )


def feed(subject: Curriculum, *successes: float, varied: bool = False, fresh: bool = True) -> None:
    for success in successes:
        subject.observe(task(subject.level), success=success, varied=varied, fresh=fresh)


def test_the_level_rises_and_falls_with_rolling_success() -> None:
    subject = curriculum((3, 1, 2))
    seen = [subject.level]
    for success in (1.0, 1.0, 0.5, 0.25, 0.25, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.75, 0.75, 0.75, 0.75, 1.0):
        feed(subject, success)
        seen.append(subject.level)
    #     mean of the last four passes 0.7 after the eighth: (.25+1+1+1)/4 = 0.81; four zeros at level 2 lead back to 1,
    #     where the count begins anew: four of 0.75 lead up again.
    assert seen == [1, *[1] * 7, 2, *[2] * 3, 1, *[1] * 3, 2, 2]


@pytest.mark.parametrize(("success", "level"), [(0.7, 1), (0.71, 2)])
def test_the_bound_itself_does_not_raise(success: float, level: int) -> None:
    subject = curriculum((1, 2))
    feed(subject, *[success] * 4)
    assert subject.level == level


def test_the_ends_of_the_scale_hold() -> None:
    subject = curriculum((1, 2))
    feed(subject, *[0.0] * 10)
    assert subject.level == 1
    feed(subject, *[1.0] * 30)
    assert subject.level == 2


def test_repeated_tasks_do_not_move_the_level() -> None:
    subject = curriculum((1, 2))
    feed(subject, *[1.0] * 10, fresh=False)
    assert subject.level == 1


def raised(**section: Any) -> Curriculum:
    subject = curriculum(**section)
    feed(subject, *[1.0] * 8)
    assert subject.level == 3
    return subject


def test_lower_levels_are_reviewed_those_with_variance_most() -> None:
    subject = raised(review=0.4, revisit=0.0)
    for _ in range(4):
        subject.observe(task(2), success=0.5, varied=True, fresh=True)
    counts = Counter(subject.choose(number).level for number in range(4000))
    assert counts[3] / 4000 == pytest.approx(0.6, abs=0.03)
    assert counts[2] / 4000 == pytest.approx(0.4 * 1.05 / 1.1, abs=0.03)
    assert counts[1] / 4000 == pytest.approx(0.4 * 0.05 / 1.1, abs=0.03)


def test_tasks_with_variance_are_played_again_until_they_have_none() -> None:
    subject = curriculum(revisit=0.5)
    subject.observe(task(1, 7), success=0.5, varied=True, fresh=True)
    again = [number for number in range(200) if subject.choose(number).task_id == "fake/train/1/7"]
    assert len(again) == 1, "a task that is being played is not given out twice"
    subject.observe(task(1, 7), success=0.25, varied=True, fresh=False)
    number = next(number for number in range(200, 400) if subject.choose(number).task_id)
    subject.observe(task(1, 7), success=1.0, varied=False, fresh=False)
    assert all(subject.choose(number) == Choice(level=1) for number in range(number, number + 200))


def test_the_share_of_repeated_tasks_and_their_number_are_bounded() -> None:
    subject = curriculum(revisit=0.3, remembered=5)
    for number in range(20):
        subject.observe(task(1, number), success=0.5, varied=True, fresh=True)
    assert subject.metrics()["curriculum/remembered"] == 5.0
    ids = []
    for number in range(2000):
        if (chosen := subject.choose(number).task_id) is not None:
            ids.append(chosen)
            subject.observe(task(1, int(chosen.rpartition("/")[2])), success=0.5, varied=True, fresh=False)
    assert len(ids) / 2000 == pytest.approx(0.3, abs=0.03)
    assert set(ids) == {f"fake/train/1/{number}" for number in range(15, 20)}


def test_tasks_above_the_level_wait() -> None:
    subject = raised(revisit=0.9)
    subject.observe(task(3, 1), success=0.5, varied=True, fresh=True)
    feed(subject, *[0.0] * 4)
    assert subject.level == 2
    assert {subject.choose(number).task_id for number in range(50)} == {None}


def test_metrics_are_declared_and_say_what_was_seen() -> None:
    subject = curriculum()
    subject.observe(task(1), success=0.5, varied=True, fresh=True)
    subject.observe(task(1, 1), success=1.0, varied=False, fresh=True)
    assert subject.metrics() == {
        "curriculum/level": 1.0,
        "curriculum/remembered": 1.0,
        "curriculum/success/level1": 0.75,
        "curriculum/variance/level1": 0.5,
    }
    for name in subject.metrics():
        lookup(name)


def test_a_restart_goes_on_where_it_was() -> None:
    subject = raised(review=0.5, revisit=0.5)
    for number in range(3):
        subject.observe(task(3, number), success=0.9, varied=number < 2, fresh=True)
    other = curriculum(review=0.5, revisit=0.5)
    other.load_state_dict(json.loads(json.dumps(subject.state_dict())))
    assert other.state_dict() == subject.state_dict()
    assert [other.choose(number) for number in range(50)] == [subject.choose(number) for number in range(50)]


def test_a_restart_with_other_levels_keeps_what_it_can() -> None:
    subject = raised()
    subject.observe(task(3, 5), success=0.5, varied=True, fresh=True)
    other = curriculum((2, 4))
    other.load_state_dict(subject.state_dict())
    assert other.level == 2
    assert other.metrics()["curriculum/remembered"] == 0.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["curriculum.enabled=true", "curriculum.raise_above=0.2"],
            r"curriculum: lower_below 0.2 must be below raise_above 0.2",
        ),
        (["curriculum.revisit=0.5", "curriculum.window=8"], r"curriculum: window, revisit does nothing while enabled is false"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def config(**curriculum: Any) -> RunConfig:
    return parse_config({"curriculum": {"enabled": True, "window": 4, **curriculum}, "rollout": {"group_size": 2}})


def test_the_stream_follows_the_curriculum(source: TaskSource) -> None:
    stream = TaskStream(source, config(revisit=0.0, review=0.0), "run")
    assert stream.metrics()["curriculum/level"] == 1.0
    for _ in range(4):
        request = stream()
        assert (request.task.level, request.task.split) == (1, "train")
        stream.observe(group_report(request.group_id, 1.0, 1.0))
    assert stream().task.level == 2
    stream.observe(group_report("of-another-run", 0.0, 0.0))
    stream.observe(group_report(stream().group_id))
    assert stream.metrics() == {
        "curriculum/level": 2.0,
        "curriculum/remembered": 0.0,
        "curriculum/success/level1": 1.0,
        "curriculum/variance/level1": 0.0,
    }


def test_the_stream_repeats_a_task_with_other_seeds(source: TaskSource) -> None:
    stream = TaskStream(source, config(revisit=0.9), "run")
    first = stream()
    stream.observe(group_report(first.group_id, 1.0, 0.0))
    again = next(request for request in (stream() for _ in range(50)) if request.task.task_id == first.task.task_id)
    assert again.task == first.task
    assert again.seed != first.seed


def test_a_finite_training_set_is_one_of_each_level(source: TaskSource) -> None:
    settings = parse_config(
        {"curriculum": {"enabled": True, "window": 4, "revisit": 0, "review": 0.5}, "env": {"train_tasks": 3}}
    )
    stream = TaskStream(source, settings, "run")
    seen: dict[int, set[str]] = {}
    for _ in range(60):
        request = stream()
        seen.setdefault(request.task.level, set()).add(request.task.task_id)
        stream.observe(group_report(request.group_id, 1.0, 1.0))
    assert {level: len(tasks) for level, tasks in seen.items()} == {1: 3, 2: 3, 3: 3}


def test_variance_is_what_the_learner_takes_it_to_be(source: TaskSource) -> None:
    kept = {}
    for measure in ("outcome", "return"):
        settings = parse_config({"curriculum": {"enabled": True}, "advantage": {"zero_variance": measure}})
        stream = TaskStream(source, settings, "run")
        stream.observe(group_report(stream().group_id, 0.0, 0.0, returns=(-0.1, -0.2)))
        kept[measure] = stream.metrics()["curriculum/remembered"]
    assert kept == {"outcome": 0.0, "return": 1.0}


def test_the_streams_state_survives_a_restart(source: TaskSource) -> None:
    stream = TaskStream(source, config(), "run")
    for _ in range(6):
        stream.observe(group_report(stream().group_id, 1.0, 0.5))
    state = json.loads(json.dumps(stream.state_dict()))
    other = TaskStream(source, config(), "resumed")
    other.load_state_dict(state)
    ours, theirs = [stream() for _ in range(10)], [other() for _ in range(10)]
    assert [(each.task, each.seed) for each in ours] == [(each.task, each.seed) for each in theirs]
    assert [each.group_id for each in theirs][:1] == ["resumed-00000006"]


def test_groups_that_were_being_played_are_played_again_with_the_tasks_chosen_for_them(source: TaskSource) -> None:
    stream = TaskStream(source, config(revisit=0.5), "run")
    for _ in range(8):
        stream.observe(group_report(stream().group_id, 1.0, 0.5))
    lost = [stream() for _ in range(4)]
    state = json.loads(json.dumps(stream.state_dict()))
    for _ in range(8):
        stream.observe(group_report(stream().group_id, 1.0, 1.0))
    resumed = TaskStream(source, config(revisit=0.5), "run")
    resumed.load_state_dict(state)
    assert [resumed() for _ in range(4)] == lost


def test_a_stream_without_a_curriculum_only_counts(source: TaskSource) -> None:
    stream = TaskStream(source, parse_config({}), "run")
    stream.observe(group_report(stream().group_id, 1.0, 0.0))
    assert stream.metrics() == {}
    assert stream.state_dict() == {"next": 1, "open": []}
    resumed = TaskStream(source, config(), "run")
    resumed.load_state_dict(stream.state_dict())
    assert resumed.metrics()["curriculum/level"] == 1.0


def test_an_explorer_counts_for_the_gradient_of_a_group_but_not_for_success(source: TaskSource) -> None:
    stream = TaskStream(source, config(), "run")
    for _ in range(4):
        stream.observe(group_report(stream().group_id, 0.0, 0.0, 1.0, explored=1))
    metrics = stream.metrics()
    assert (metrics["curriculum/success/level1"], metrics["curriculum/variance/level1"]) == (0.0, 1.0)
    assert metrics["curriculum/level"] == 1.0
