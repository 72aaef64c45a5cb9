"""Re-scoring a pool on real servers: afterwards it is as if the new reward had been there from the start."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cacherl.codec import encode_group
from cacherl.config import load_config
from cacherl.errors import DeadlineExceeded
from cacherl.trajectory import TrajectoryGroup
from deploy.launch import Launch
from deploy.priority import FreshPriority
from deploy.replay_cli import app
from deploy.rescore import RescoreResult, fingerprint, rescore_pool
from deploy.run_dir import RunDirectory, RunIdentity, held, note_reward
from reward_data import bad, calls, episode, good
from rewards.composer import Composer

TESTS = Path(__file__).resolve().parent.parent
OLD = {"tool_use": 0.05}
NEW = {"tool_use": 0.02, "step_penalty": -0.05, "result_utilization": 0.03}


def config_of(reward, tmp_path, name, **replay):
    path = tmp_path / f"{name}.yaml"
    tree = {"reward": reward, "advantage": {"normalize_std": False}, "env": {"max_turns": 6}, "replay": replay}
    path.write_text(json.dumps(tree))
    return path


def played(number: int) -> TrajectoryGroup:
    """Three members of different length and merit; the third succeeds."""
    short = episode(calls(good("needed", "first")), calls())
    long = episode(*[calls(good("needed", "first"), bad("parse"))] * (1 + number % 5), calls(), length=40 + number)
    best = episode(calls(good("needed", "first")), calls(good("needed", "first")), calls(), outcome=1.0)
    members = tuple(
        replace(member, trajectory_id=f"g{number}:{place}", task_id=f"t{number}")
        for place, member in enumerate((short, long, best))
    )
    return TrajectoryGroup(group_id=f"g{number}", task_id=f"t{number}", trajectories=members)


def fill(pool, path, count, *, extra=()):
    config = load_config(path)
    composer, priority = Composer.from_config(config), FreshPriority(config)
    for group in [*map(played, range(count)), *extra]:
        scored = replace(group, trajectories=composer.score(group.trajectories))
        pool.push(scored, priority=priority(scored))
    return pool


def contents(pool):
    infos = sorted(pool.entries(), key=lambda info: info.sequence)
    groups = pool.fetch([info.group_id for info in infos])
    return [(info.group_id, info.bytes, encode_group(group)) for info, group in zip(infos, groups, strict=True)]


def priorities(pool):
    return {info.group_id: info.priority for info in pool.entries()}


def assert_same(rescored, fresh, batches=6):
    """Stored rewards, priorities, masses and what is drawn are those of a pool that never knew another reward."""
    assert contents(rescored) == contents(fresh)
    assert priorities(rescored) == priorities(fresh)
    assert rescored.stats().bytes == fresh.stats().bytes
    for batch in range(batches):
        one, other = rescored.sample(f"b{batch}", 4), fresh.sample(f"b{batch}", 4)
        assert [entry.group_id for entry in one.entries] == [entry.group_id for entry in other.entries]
        assert [entry.probability for entry in one.entries] == pytest.approx([e.probability for e in other.entries])
        assert [entry.is_weight for entry in one.entries] == pytest.approx([entry.is_weight for entry in other.entries])
        new = {entry.group_id: entry.priority / 2 for entry in one.entries}
        assert rescored.ack(f"b{batch}", priorities=new) == fresh.ack(f"b{batch}", priorities=new) == "ok"


@pytest.mark.parametrize(
    "options", [{}, {"eviction": "utility", "priority_exponent": 0.6}, {"sharded": True}, {"priority": "extreme"}]
)
def test_a_rescored_pool_is_one_filled_with_the_new_reward_from_the_start(
    server, shard_servers, make_pool, tmp_path, monkeypatch, options
):
    monkeypatch.setenv("CACHERL_REPLAY_URL", server.url)
    where = {"url": server.url, "shards": tuple(each.url for each in shard_servers)} if options.get("sharded") else {}
    options = where or options
    rules = {**where, "priority": options.get("priority", "advantage")}
    old, new = config_of(OLD, tmp_path, "old", **rules), config_of(NEW, tmp_path, "new", **rules)
    edited = fill(make_pool("edited", seed=7, **options), old, 12)
    fresh = fill(make_pool("fresh", seed=7, **options), new, 12)
    assert priorities(edited) != priorities(fresh)
    command = ["rescore", "-n", "edited", "-c", str(new), "--json"]
    answer = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert answer == {"rescored": 12, "dropped": 0, "known": 0, "gone": 0, "unjudged": 0}
    again = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert again == {"rescored": 0, "dropped": 0, "known": 12, "gone": 0, "unjudged": 0}
    assert_same(edited, fresh)


def test_going_back_to_the_old_reward_is_an_edit_too(make_pool, tmp_path):
    old, new = config_of(OLD, tmp_path, "old"), config_of(NEW, tmp_path, "new")
    pool, untouched = fill(make_pool("edited", seed=3), old, 5), fill(make_pool(seed=3), old, 5)
    editor = make_pool("edited")
    for path in (new, old):
        assert rescore_pool(editor, load_config(path)) == RescoreResult(rescored=5, dropped=0, known=0, gone=0)
    assert_same(pool, untouched)


def test_a_group_without_a_gradient_under_the_new_reward_is_counted_and_not_kept(make_pool, tmp_path):
    """With no partial reward but the outcome, equal returns of different outcomes cannot be, but equal outcomes can."""
    path = tmp_path / "flat.yaml"
    path.write_text(json.dumps({"reward": {"tool_use": 0, "tool_misuse": 0}, "advantage": {"zero_variance": "return"}}))
    twins = tuple(replace(played(0).trajectories[0], trajectory_id=f"w:{place}", task_id="w") for place in range(2))
    lucky = replace(twins[0], turns=(replace(twins[0].turns[0], calls=()), twins[0].turns[1]))
    even = TrajectoryGroup(group_id="even", task_id="w", trajectories=(lucky, twins[1]))
    pool = make_pool(seed=1)
    pool.push(even, priority=1.0)
    assert rescore_pool(pool, load_config(path)) == RescoreResult(rescored=0, dropped=1, known=0, gone=0)
    assert (len(pool), pool.stats().zero_variance, pool.get("even")) == (0, 1, None)


SLOWLY = {"path": "reward_components_of_users.slowly", "name": "slow", "weight": 0.01, "settings": {"seconds": 0.004}}
SLOW = {**NEW, "components": [SLOWLY]}
#: Groups of the pool whose re-scoring is killed.
KILLED = 30


def test_killed_in_the_middle_and_started_again(server, make_pool, tmp_path):
    old, new = config_of(OLD, tmp_path, "old"), config_of(SLOW, tmp_path, "slow")
    pool, fresh = fill(make_pool("killed", seed=5), old, KILLED), fill(make_pool("whole", seed=5), new, KILLED)
    mark = fingerprint(load_config(new))
    arguments = ["-n", "killed", "-c", str(new), "--url", server.url, "--json"]
    command = [sys.executable, "-m", "deploy", "replay", "rescore", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=TESTS.parent)
    deadline = time.monotonic() + 60
    while len(pool.marked(mark)) < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = pool.marked(mark)
    assert 5 <= len(done) < KILLED
    expected, before = priorities(fresh), priorities(fill(make_pool("before"), old, KILLED))
    assert priorities(pool) == {name: (expected if name in done else before)[name] for name in before}
    finished = subprocess.run(command, env=environment, capture_output=True, cwd=TESTS.parent, check=True)
    answer = json.loads(finished.stdout)
    assert answer == {"rescored": KILLED - len(done), "dropped": 0, "known": len(done), "gone": 0, "unjudged": 0}
    assert_same(pool, fresh)


def test_a_group_that_a_learner_holds_is_rescored_when_it_is_given_back(make_pool, tmp_path):
    old, new = config_of(OLD, tmp_path, "old"), config_of(NEW, tmp_path, "new")
    pool, fresh = fill(make_pool("held"), old, 6), fill(make_pool("free"), new, 6)
    held = [entry.group_id for entry in pool.sample("b", 2).entries]
    results = []
    thread = threading.Thread(target=lambda: results.append(rescore_pool(pool, load_config(new))))
    thread.start()
    deadline = time.monotonic() + 10
    while len(pool.marked(fingerprint(load_config(new)))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert thread.is_alive()
    pool.ack("b", priorities=dict.fromkeys(held, 123.0))
    thread.join(10)
    assert results == [RescoreResult(rescored=6, dropped=0, known=0, gone=0)]
    assert priorities(pool) == priorities(fresh)


def test_what_a_dead_learner_holds_is_rescored_and_drawn_again_under_its_name(make_pool, tmp_path):
    old, new = config_of(OLD, tmp_path, "old"), config_of(NEW, tmp_path, "new")
    pool, fresh = fill(make_pool("held"), old, 6), fill(make_pool("free"), new, 6)
    held = [entry.group_id for entry in pool.sample("b", 2).entries]
    assert rescore_pool(pool, load_config(new), leased_too=True) == RescoreResult(rescored=6, dropped=0, known=0, gone=0)
    assert priorities(pool) == priorities(fresh)
    assert [entry.group_id for entry in pool.sample("b", 2).entries] == held
    assert [encode_group(group) for group in pool.fetch(held)] == [encode_group(group) for group in fresh.fetch(held)]


def test_a_lease_that_never_ends_is_an_error_that_says_so(make_pool, tmp_path, monkeypatch):
    monkeypatch.setattr("deploy.rescore._LEASE_SLACK_S", -10_000.0)
    pool = fill(make_pool(), config_of(OLD, tmp_path, "old"), 2)
    pool.sample("b", 1)
    with pytest.raises(DeadlineExceeded, match="a learner to give back 1 groups"):
        rescore_pool(pool, load_config(config_of(NEW, tmp_path, "new")))


def test_evicted_groups_leave_no_mark_behind(make_pool, tmp_path):
    new = load_config(config_of(NEW, tmp_path, "new"))
    pool = fill(make_pool(), config_of(OLD, tmp_path, "old"), 3)
    rescore_pool(pool, new)
    pool.prune(["g1"])
    assert pool.marked(fingerprint(new)) == {"g0", "g2"}
    assert pool.rescore(played(1), priority=1.0, mark="m") == "gone"


def test_an_edit_of_a_component_s_code_is_an_edit_too(make_pool, tmp_path, monkeypatch):
    """The settings stay the same; a command in a new process sees the new code."""
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "edited_component.py"
    part = {"path": "edited_component.turn", "name": "mine", "weight": 0.01}
    config = load_config(config_of({**NEW, "components": [part]}, tmp_path, "mine"))
    pool = fill(make_pool(seed=1), config_of(OLD, tmp_path, "old"), 3)
    rescored = RescoreResult(rescored=3, dropped=0, known=0, gone=0)
    for value in ("0.25", "0.5"):
        code.write_text(f"def turn(step):\n    return {value}  # {'x' * len(value)}\n")
        sys.modules.pop("edited_component", None)
        importlib.invalidate_caches()
        assert rescore_pool(pool, config) == rescored
        assert rescore_pool(pool, config) == replace(rescored, rescored=0, known=3)
        assert pool.get("g0").trajectories[0].turns[0].rewards["mine"] == pytest.approx(0.01 * float(value))


def test_scores_that_a_judge_did_not_give_are_counted_and_asked_for_again(make_pool, tmp_path):
    judge = {"weight": 0.1, "url": "http://127.0.0.1:9/v1", "model": "grader", "deadline_s": 1.0, "retries": 0}
    config = load_config(config_of({**NEW, "judge": judge}, tmp_path, "judged"))
    pool = fill(make_pool(seed=1), config_of(OLD, tmp_path, "old"), 3)
    failed = RescoreResult(rescored=3, dropped=0, known=0, gone=0, unjudged=3)
    assert rescore_pool(pool, config) == failed
    assert {name for member in pool.get("g1").trajectories for name in member.rewards} == {"final", "judge_missing"}
    assert rescore_pool(pool, config) == failed


class Stopped(Exception):
    pass


def resumed(tmp_path, path, notes=None) -> Launch:
    """A further session of the run in `tmp_path`, with the reward of the config at `path`; its notes go to `notes`."""
    place = [f"run.dir={tmp_path}", "run.name=mine", "run.if_exists=resume"]
    config = load_config(path, place)
    monitor = SimpleNamespace(show=lambda **_: None, note=[].append if notes is None else notes.append)
    return Launch(config=config, directory=RunDirectory(config), monitor=monitor, source=None, checkpoint=None)


def test_a_session_killed_while_it_rescores_leaves_a_pool_that_the_old_reward_rescores_too(make_pool, tmp_path, monkeypatch):
    old, new = config_of(OLD, tmp_path, "old"), config_of(NEW, tmp_path, "new")
    pool, untouched = fill(make_pool("edited", seed=3), old, 8), fill(make_pool(seed=3), old, 8)
    editor = make_pool("edited")
    note_reward(resumed(tmp_path, old).directory.path, fingerprint(load_config(old)))

    def stopped(*args, **kwargs):
        def progress(done: int, total: int) -> None:
            if done == 4:
                raise Stopped

        return rescore_pool(*args, **{**kwargs, "progress": progress})

    with monkeypatch.context() as patch:
        patch.setattr("deploy.rescore.rescore_pool", stopped)
        with pytest.raises(Stopped):
            asyncio.run(resumed(tmp_path, new)._score_pool(editor))
    assert contents(pool) != contents(untouched)
    asyncio.run(resumed(tmp_path, old)._score_pool(editor))
    assert resumed(tmp_path, old).directory.scored_with == fingerprint(load_config(old))
    assert_same(pool, untouched)


def test_what_a_judge_did_not_score_is_asked_for_at_the_next_resume(make_pool, tmp_path):
    judge = {"weight": 0.1, "url": "http://127.0.0.1:9/v1", "model": "grader", "deadline_s": 1.0, "retries": 0}
    old, judged = config_of(OLD, tmp_path, "old"), config_of({**NEW, "judge": judge}, tmp_path, "judged")
    pool = fill(make_pool("edited", seed=1), old, 2)
    note_reward(resumed(tmp_path, old).directory.path, fingerprint(load_config(old)))
    notes: list[str] = []
    for _ in range(2):
        asyncio.run(resumed(tmp_path, judged, notes)._score_pool(pool))
    asked = (
        "the reward was edited: 2 groups re-scored, 0 without a gradient dropped, 2 with scores missing that the judge did not"
    )
    assert [note.startswith(asked) for note in notes] == [True, True]


def test_beside_a_session_the_command_leaves_the_rest_to_the_next_resume(make_pool, server, tmp_path):
    """What the session pushed since has the reward that it began with."""
    old, new = config_of(OLD, tmp_path, "old", url=server.url), config_of(NEW, tmp_path, "new", url=server.url)
    pool, fresh = fill(make_pool("edited", seed=3), old, 5), fill(make_pool(seed=3), new, 5, extra=[played(7)])
    directory = resumed(tmp_path, old).directory
    directory.identity(RunIdentity(run_id="r", replay_namespace="edited"))
    note_reward(directory.path, fingerprint(load_config(old)))
    with held(directory.path) as alone:
        assert alone
        command = ["rescore", "--run", str(directory.path), "-c", str(new), "--json"]
        assert json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)["rescored"] == 5
        fill(pool, old, 0, extra=[played(7)])
    assert directory.scored_with is None
    notes: list[str] = []
    asyncio.run(resumed(tmp_path, new, notes)._score_pool(make_pool("edited")))
    assert notes == ["the reward was edited: 1 groups re-scored, 0 without a gradient dropped"]
    assert directory.scored_with == fingerprint(load_config(new))
    assert_same(pool, fresh)


def test_a_run_knows_when_its_pool_was_rescored_by_the_command(make_pool, server, tmp_path):
    old, new = config_of(OLD, tmp_path, "old", url=server.url), config_of(NEW, tmp_path, "new", url=server.url)
    pool, untouched = fill(make_pool("edited", seed=3), old, 5), fill(make_pool(seed=3), old, 5)
    directory = resumed(tmp_path, old).directory
    directory.identity(RunIdentity(run_id="r", replay_namespace="edited"))
    note_reward(directory.path, fingerprint(load_config(old)))
    command = ["rescore", "--run", str(directory.path), "-c", str(new), "--json"]
    answer = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert (answer["rescored"], directory.scored_with) == (5, fingerprint(load_config(new)))
    asyncio.run(resumed(tmp_path, old)._score_pool(make_pool("edited")))
    assert_same(pool, untouched)
