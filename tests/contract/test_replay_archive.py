"""Export, import, and the command line on a pool in use."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from cacherl.codec import encode_group
from cacherl.errors import CodecError, ConfigError, ReplayError
from deploy.replay_cli import app
from replay_service.archive import ImportResult, export_pool, import_pool


@pytest.fixture
def filled(make_pool, make_group):
    pool = make_pool("filled", warmup_steps=4, update_frequency=2, max_ahead=100)
    for i in range(5):
        pool.push(make_group(f"g{i}", version=i, task=f"t{i}", wins=i % 3), priority=0.5 + i)
    pool.set_version(4)
    pool.sample("b", 2)
    return pool


def test_a_pool_moves_through_a_file(filled, make_pool, tmp_path):
    seen = []
    assert export_pool(filled, tmp_path / "pool.crlp", progress=lambda *at: seen.append(at)) == 5
    assert seen == [(i, 5) for i in range(1, 6)]
    other = make_pool("other", warmup_steps=6, update_frequency=1000, max_ahead=10, max_staleness=2, half_logprobs=True)
    other.set_version(3)
    assert import_pool(other, tmp_path / "pool.crlp") == ImportResult(imported=4, known=0, stale=1)
    assert {info.group_id: info.priority for info in other.entries()} == {"g1": 1.5, "g2": 2.5, "g3": 3.5, "g4": 4.5}
    assert len(other.sample("first", 4)) == 4  # what was imported counts as warm-up and asks nobody to wait
    again = import_pool(other, tmp_path / "pool.crlp")
    assert (again.imported, again.known) == (0, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["pool.crlp"]
    other.prune(["g2", "g3"])
    assert import_pool(other, tmp_path / "pool.crlp") == ImportResult(imported=2, known=2, stale=1)
    assert other.ack("first", priorities={"g2": 9.0}) == "ok"
    assert {info.group_id: info.leases for info in other.entries()} == dict.fromkeys(["g1", "g2", "g3", "g4"], 0)


def test_damaged_files_are_refused_before_anything_is_pushed(filled, make_pool, tmp_path):
    path = tmp_path / "pool.crlp"
    export_pool(filled, path)
    whole = path.read_bytes()
    target = make_pool("target")
    for damage, message in (
        (b"PK" + whole, "is not an exported pool"),
        (whole[:4] + b"\x09" + whole[5:], "has version 9, this program reads 1"),
        (whole[:-1], "ends after 5 groups, before its end mark"),
        (whole[: len(whole) // 2], "cut short"),
        (whole.replace(b"CRLG", b"CRLX"), "not a trajectory group"),
    ):
        path.write_bytes(damage)
        with pytest.raises(CodecError, match=message):
            import_pool(target, path)
    assert target.stats().inserted == 0


def test_profile_of_a_pool(filled):
    profile = filled.profile()
    assert (profile.groups, profile.success_share) == (5, 0.4)
    assert profile.priorities == {0.0: 0.5, 0.1: 0.9, 0.25: 1.5, 0.5: 2.5, 0.75: 3.5, 0.9: 4.1, 1.0: 4.5}
    assert sum(profile.histogram.values()) == 5
    assert profile.staleness == dict.fromkeys(range(5), 1)
    assert profile.uses == {0: 3, 1: 2}
    assert all(0 <= age < 60 for age in profile.ages_s.values())
    assert len(filled) == 5


@pytest.fixture
def run(server, monkeypatch):
    monkeypatch.setenv("CACHERL_REPLAY_URL", server.url)

    def invoke(*arguments):
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False).stdout

    return invoke


def test_stats_and_list(filled, run):
    stats = json.loads(run("stats", "-n", "filled", "--json"))
    assert (stats["groups"], stats["inserted"], stats["leases"], stats["profile"]["uses"]) == (5, 10, 1, {"0": 3, "1": 2})
    assert "never_sampled" in run("stats", "-n", "filled")
    rows = [json.loads(line) for line in run("list", "-n", "filled", "--limit", "2", "--json").splitlines()]
    assert [(row["group_id"], row["priority"], row["version"]) for row in rows] == [("g4", 4.5, 4), ("g3", 3.5, 3)]
    assert "g4" in run("list", "-n", "filled")


def test_show(filled, run):
    group = json.loads(run("show", "g2", "-n", "filled", "--json"))
    assert group["trajectories"][1]["token_ids"] == list(range(8))
    shown = run("show", "g2", "-n", "filled")
    assert "answer" in shown
    assert [line for line in shown.splitlines() if line.startswith("in the end")] == ["in the end: final +1"] * 2
    with pytest.raises(ConfigError, match="'filled' holds no group 'nope'"):
        run("show", "nope", "-n", "filled")


def test_export_import_and_prune(filled, make_pool, run, tmp_path):
    path = str(tmp_path / "pool.crlp")
    assert json.loads(run("export", path, "-n", "filled", "--json"))["exported"] == 5
    make_pool("into").check()
    assert json.loads(run("import", path, "-n", "into", "--json")) == {"imported": 5, "known": 0, "stale": 0}
    assert run("prune", "-n", "into", "--before-version", "2", "--dry-run") == "matched 2, removed 0\n"
    assert run("prune", "-n", "into", "--before-version", "2", "--below-priority", "1") == "matched 1, removed 1\n"
    assert json.loads(run("stats", "-n", "into", "--json"))["pruned"] == 1
    with pytest.raises(ConfigError, match="at least one of"):
        run("prune", "-n", "into")


def test_a_pool_that_does_not_exist_is_an_error_and_is_not_made(run):
    for _ in range(2):
        with pytest.raises(ReplayError, match="there is no pool 'absent'"):
            run("stats", "-n", "absent")


def test_importing_with_a_config_makes_the_pool(filled, make_pool, run, tmp_path):
    path = str(tmp_path / "pool.crlp")
    run("export", path, "-n", "filled")
    (tmp_path / "run.yaml").write_text(
        "replay: {capacity: 6, max_ahead: 2, warmup_steps: 2}\nlearner: {batch_size: 2}\nrollout: {group_size: 2}\n"
    )
    assert run("import", path, "-n", "made-by-import", "-c", str(tmp_path / "run.yaml")) == "imported 5, known 0, stale 0\n"
    assert make_pool("made-by-import", capacity=6, max_ahead=2).stats().evicted == 2


def test_shards_hold_the_payloads_and_are_cleaned_up(server, shard_servers, make_pool, make_group):
    import redis

    shards = tuple(each.url for each in shard_servers)
    pool = make_pool("sharded", url=server.url, shards=shards, capacity=40, max_ahead=40)
    groups = [make_group(f"g{i}") for i in range(60)]
    for group in groups:
        pool.push(group, priority=1)
    assert pool.push(groups[0], priority=1).status == "dup"
    plan = pool.sample("b", 20)
    back = pool.fetch([entry.group_id for entry in plan.entries])
    by_name = {group.group_id: encode_group(group) for group in groups}
    assert [encode_group(group) for group in back] == [by_name[entry.group_id] for entry in plan.entries]
    pool.ack("b", priorities={})
    pool.reap()
    names = [[key.decode() for key in redis.Redis.from_url(url).scan_iter("{sharded}:*")] for url in shards]
    assert sorted(name.removeprefix("{sharded}:g:") for part in names for name in part) == sorted(
        f"g{i}" for i in range(40, 60)
    )
    assert all(5 <= len(part) <= 15 for part in names)
    with pytest.raises(ReplayError, match="was written over 2 shards, not 1"):
        make_pool("sharded", url=server.url, shards=shards[:1]).check()
    with redis.Redis.from_url(shards[0]) as raw:
        raw.delete(names[0][0])
    lost = names[0][0].removeprefix("{sharded}:g:")
    assert pool.get(lost) is None
    assert (pool.stats().orphans, pool.stats().groups) == (1, 19)
