"""Export, import, and the command line on a pool in use."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import msgpack
import pytest
from typer.testing import CliRunner

from cacherl.codec import encode_group
from cacherl.errors import CodecError, ConfigError, ReplayError
from deploy.replay_cli import app
from replay_service.archive import ExportResult, ImportResult, export_pool, import_pool, read_archive


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
    assert export_pool(filled, tmp_path / "pool.crlp", progress=lambda *at: seen.append(at)) == ExportResult(
        exported=5, damaged=0
    )
    assert seen == [(i, 5) for i in range(1, 6)]
    other = make_pool("other", warmup_steps=6, update_frequency=1000, max_ahead=10, max_staleness=2, half_logprobs=True)
    other.set_version(3)
    assert import_pool(other, tmp_path / "pool.crlp") == ImportResult(imported=4, zero_priority=0, known=0, stale=1)
    assert {info.group_id: info.priority for info in other.entries()} == {"g1": 1.5, "g2": 2.5, "g3": 3.5, "g4": 4.5}
    assert len(other.sample("first", 4)) == 4  # what was imported counts as warm-up and asks nobody to wait
    again = import_pool(other, tmp_path / "pool.crlp")
    assert (again.imported, again.known) == (0, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["pool.crlp"]
    other.prune(["g2", "g3"])
    assert import_pool(other, tmp_path / "pool.crlp") == ImportResult(imported=2, zero_priority=0, known=2, stale=1)
    assert other.ack("first", priorities={"g2": 9.0}) == "ok"
    assert {info.group_id: info.leases for info in other.entries()} == dict.fromkeys(["g1", "g2", "g3", "g4"], 0)


def _with_priority(whole: bytes, priority: float) -> bytes:
    """An archive with another priority of its last group, which follows groups that could be pushed."""
    *groups, count = (unpacker := msgpack.Unpacker()).feed(whole[5:]) or unpacker
    groups[-1][0] = priority
    return whole[:5] + b"".join(map(msgpack.packb, [*groups, count]))


def test_groups_that_the_pool_cannot_hold_are_refused_before_anything_is_pushed(make_pool, make_group, tmp_path):
    path = tmp_path / "pool.crlp"
    pool = make_pool()
    for name, tokens in (("a", 8), ("b", 8), ("big", 4000)):
        pool.push(make_group(name, tokens=tokens, size=3), priority=1)
    export_pool(pool, path)
    for limits, error, message in (
        ({"max_group_bytes": 4000}, CodecError, r"'big' has \d+ bytes, max_group_bytes is 4000"),
        ({"capacity_bytes": 4000}, ReplayError, r"'big' of 3 trajectories and \d+ bytes exceeds the whole pool"),
        ({"capacity": 2}, ReplayError, "'a' of 3 trajectories"),
    ):
        target = make_pool(**limits)
        with pytest.raises(error, match=message):
            import_pool(target, path)
        assert target.stats().inserted == 0


def test_damaged_groups_are_left_out_of_an_export_and_counted(filled, tmp_path):
    filled._index.run(lambda client: client.set("{filled}:g:g1", b"garbage"))
    assert export_pool(filled, tmp_path / "pool.crlp") == ExportResult(exported=4, damaged=1)
    assert [group.group_id for _, group in read_archive(tmp_path / "pool.crlp")] == ["g0", "g2", "g3", "g4"]


def test_an_export_that_cannot_be_written_leaves_nothing(filled, tmp_path):
    (tmp_path / "folder").mkdir()
    for path, message in ((tmp_path / "folder", "it is a folder"), (tmp_path / "none" / "pool", "no folder .*none")):
        with pytest.raises(ConfigError, match=message):
            export_pool(filled, path)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_groups_of_priority_0_are_reported_apart(make_pool, make_group, tmp_path):
    pool, other = make_pool(), make_pool()
    for name in "abc":
        pool.push(make_group(name), priority=1)
    pool.sample("s", 3)
    pool.ack("s", priorities={"a": 0.0, "b": 0.0})
    export_pool(pool, tmp_path / "pool.crlp")
    assert import_pool(other, tmp_path / "pool.crlp") == ImportResult(imported=1, zero_priority=2, known=0, stale=0)
    assert len(other) == 1


@pytest.mark.parametrize("group_id", ["\ud800lone", "ünï☃ 😀", "a b\n\0c", "{x}:y", ""])
def test_an_id_may_be_any_text(make_pool, make_group, run, tmp_path, group_id):
    pool = make_pool("any-text", newest_per_task=True)
    pool.push(make_group(group_id, task=group_id), priority=1)
    (entry,) = pool.sample(f"batch {group_id}", 1).entries
    assert pool.ack(f"batch {group_id}", priorities={entry.group_id: 2.0}) == "ok"
    assert pool.get(group_id).group_id == entry.group_id == group_id
    assert json.loads(run("list", "-n", "any-text", "--json"))["group_id"] == group_id
    assert "answer" in run("show", group_id, "-n", "any-text")
    assert "2" in run("list", "-n", "any-text")
    export_pool(pool, tmp_path / "pool.crlp")
    assert pool.prune([group_id]) == 1
    assert import_pool(pool, tmp_path / "pool.crlp").imported == 1
    assert pool.get(group_id).group_id == group_id


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
        (whole + b"\x00", "goes on after its end mark"),
        (_with_priority(whole, math.nan), "priority must be finite and >= 0, got nan"),
        (_with_priority(whole, -1.0), "priority must be finite and >= 0, got -1"),
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


def test_show_tells_who_played_in_the_policys_place(make_pool, make_group, run):
    group = make_group("g")
    own, other = group.trajectories
    make_pool("mixed").push(replace(group, trajectories=(own, replace(other, source="demonstration"))), priority=1)
    shown = run("show", "g", "-n", "mixed")
    assert "g-0: terminated, outcome 1" in shown
    assert "g-1: demonstration, terminated, outcome 0" in shown


def test_export_import_and_prune(filled, make_pool, run, tmp_path):
    path = str(tmp_path / "pool.crlp")
    assert json.loads(run("export", path, "-n", "filled", "--json"))["exported"] == 5
    make_pool("into").check()
    assert json.loads(run("import", path, "-n", "into", "--json")) == {
        "imported": 5,
        "zero_priority": 0,
        "known": 0,
        "stale": 0,
    }
    assert run("prune", "-n", "into", "--before-version", "2", "--dry-run") == "matched 2, removed 0\n"
    assert run("prune", "-n", "into", "--before-version", "2", "--below-priority", "1") == "matched 1, removed 1\n"
    assert json.loads(run("stats", "-n", "into", "--json"))["pruned"] == 1
    with pytest.raises(ConfigError, match="at least one of"):
        run("prune", "-n", "into")


def test_ids_are_shown_as_they_are_and_in_full(make_pool, make_group, run):
    pool = make_pool("odd")
    long = "research-run-1234abcd-" + "0123456789" * 8
    for name in ("[/bold]odd", "[red]x[/red]", long):
        pool.push(make_group(name, task="t[red]"), priority=1)
    listed = run("list", "-n", "odd")
    columns = [[cell.strip() for cell in line.split("│")] for line in listed.splitlines() if line.startswith("│")]
    cells = "".join(cells[1] for cells in columns)
    assert all(name in cells for name in ("[/bold]odd", "[red]x[/red]", long))
    assert "[/bold]odd" in run("show", "[/bold]odd", "-n", "odd")


def test_names_and_urls_that_cannot_be_are_refused_without_their_secrets(run):
    with pytest.raises(ConfigError, match="namespace 'bad name' must be letters"):
        run("stats", "-n", "bad name")
    with pytest.raises(ReplayError) as refusal:
        run("stats", "-n", "x", "--url", "redis://:SEC/RET@h")
    assert "RET" not in str(refusal.value)


def test_clear_deletes_one_pool_when_told_so_twice(filled, make_pool, make_group, run):
    make_pool("filled2").push(make_group("g"), priority=1)
    with pytest.raises(ConfigError, match="deletes pool 'filled' with its 5 groups for good: confirm with --yes"):
        run("clear", "-n", "filled")
    assert len(filled) == 5
    said = json.loads(run("clear", "-n", "filled", "--yes", "--json"))
    assert said["groups"] == 5
    assert said["keys"] > 5
    assert filled._index.run(lambda client: list(client.scan_iter("{filled}:*"))) == []
    assert len(make_pool("filled2")) == 1
    with pytest.raises(ReplayError, match="there is no pool 'filled'"):
        run("clear", "-n", "filled", "--yes")


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
    assert run("import", path, "-n", "made-by-import", "-c", str(tmp_path / "run.yaml")) == (
        "imported 5, zero_priority 0, known 0, stale 0\n"
    )
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
