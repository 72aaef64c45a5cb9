"""Which tasks a run plays follows from its seed alone."""

from __future__ import annotations

from actors.rollout import GroupRequest
from cacherl.config import RunConfig, parse_config
from deploy.tasks import TaskStream, draw_task, held_out_tasks
from envs.base import TaskSource
from envs.research.world import build_world


def config(seed: int = 5) -> RunConfig:
    return parse_config({"run": {"seed": seed}, "env": {"levels": [3, 1]}, "rollout": {"group_size": 4}, "eval": {"tasks": 50}})


def requests(source: TaskSource, seed: int, prefix: str = "run") -> list[GroupRequest]:
    stream = TaskStream(source, config(seed), prefix)
    return [stream() for _ in range(30)]


def test_a_stream_numbers_its_groups_and_alternates_levels(source: TaskSource) -> None:
    stream = TaskStream(source, config(), "run-ab12")
    first, second = stream(), stream()
    assert (first.group_id, second.group_id) == ("run-ab12-00000000", "run-ab12-00000001")
    assert (first.task.level, second.task.level, first.task.split, first.size) == (3, 1, "train", 4)


def test_group_n_is_a_function_of_the_seed(source: TaskSource) -> None:
    here, there, other = requests(source, 5), requests(source, 5, prefix="other"), requests(source, 6)
    assert [(each.task, each.seed) for each in here] == [(each.task, each.seed) for each in there]
    assert [each.task for each in here] != [each.task for each in other]
    assert len({each.task.task_id for each in here}) == len({each.seed for each in here}) == 30
    assert not {each.seed for each in here} & {each.seed for each in other}
    assert not {each.group_id for each in here} & {each.group_id for each in there}


def test_a_task_does_not_depend_on_those_drawn_before(source: TaskSource) -> None:
    task = draw_task(source, config(), split="train", number=17)
    assert task == requests(source, 5)[17].task
    assert task.level == 1
    assert draw_task(source, config(), split="train", number=-1).level == 1


def test_held_out_tasks_are_fixed_and_from_the_validation_split(source: TaskSource) -> None:
    tasks = held_out_tasks(source, config())
    assert tasks == held_out_tasks(source, config())
    assert tasks != held_out_tasks(source, config(seed=6))
    assert len({task.task_id for task in tasks}) == 50
    assert [task.level for task in tasks[:4]] == [3, 1, 3, 1]
    assert {task.split for task in tasks} == {"val"}


def test_training_and_held_out_tasks_share_no_step(source: TaskSource) -> None:
    def hops(tasks: list[tuple[str, int, int]]) -> set[tuple[str, str, str]]:
        worlds = [build_world(split=split, level=level, seed=seed) for split, level, seed in tasks]
        return {hop for world in worlds for hop in zip(world.chain, world.relations, world.chain[1:], strict=False)}

    seen = [draw_task(source, config(), split="train", number=number) for number in range(-200, 200)]
    held_out = held_out_tasks(source, config())
    train, val = (hops([(task.split, task.level, task.seed) for task in tasks]) for tasks in (seen, held_out))
    assert (len(train) > 300, len(val) > 80) == (True, True)
    assert not train & val


def test_a_resumed_stream_plays_what_had_not_reached_the_pool(source: TaskSource) -> None:
    before = TaskStream(source, config(), "run")
    handed_out = [before() for _ in range(6)]
    for request in (handed_out[0], handed_out[1], handed_out[3]):
        before.finished(request.group_id)
    state = before.state_dict()
    assert state == {"next": 6, "open": [2, 4, 5]}
    later = [before() for _ in range(4)]  # 6 to 9, after the checkpoint
    in_pool = {handed_out[4].group_id, later[0].group_id, later[2].group_id}

    after = TaskStream(source, config(), "run")
    after.load_state_dict(state)
    assert after.skip_pushed(lambda ids: [group_id in in_pool for group_id in ids]) == 3
    played = [after() for _ in range(6)]
    assert [request.group_id[-2:] for request in played] == ["02", "05", "07", "09", "10", "11"]
    assert (played[0].task, played[0].seed) == (handed_out[2].task, handed_out[2].seed)
    assert after.state_dict() == {"next": 12, "open": [2, 5, 7, 9, 10, 11]}


def test_a_stream_without_a_checkpoint_leaves_out_what_the_pool_has(source: TaskSource) -> None:
    stream = TaskStream(source, config(), "run")
    assert stream.skip_pushed(lambda ids: [group_id.endswith(("0000", "0002")) for group_id in ids]) == 2
    assert [stream().group_id[-2:] for _ in range(3)] == ["01", "03", "04"]


def test_exploration_goes_out_with_the_groups_until_it_ends(source: TaskSource) -> None:
    exploring = parse_config({"run": {"seed": 5}, "exploration": {"rate": 0.25, "updates": 2}})
    stream = TaskStream(source, exploring, "run")
    rates = [stream().exploration]
    for version in (1, 2, 3):
        stream.set_version(version)
        rates.append(stream().exploration)
    assert rates == [0.25, 0.25, 0.0, 0.0]
    assert TaskStream(source, config(), "run")().exploration == 0.0


def test_a_finite_training_set_is_played_in_turn_by_different_episodes(source: TaskSource) -> None:
    finite = config().model_copy(update={"env": config().env.model_copy(update={"train_tasks": 3})})
    stream = TaskStream(source, finite, "run")
    first, second = [stream() for _ in range(3)], [stream() for _ in range(3)]
    assert [each.task for each in first] == [each.task for each in second]
    assert len({each.task.task_id for each in first}) == 3
    assert not {each.seed for each in first} & {each.seed for each in second}
