"""A config is read whole or refused with the name of the field."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from cacherl.config import RunConfig, load_config, parse_config
from cacherl.errors import ConfigError
from cacherl.replay_settings import ReplaySettings

PROJECT = Path(__file__).parents[2]
CONFIGS = sorted((PROJECT / "deploy" / "configs").glob("*.yaml"))
COMPARISONS = sorted((PROJECT / "benchmarks" / "comparisons").glob("*.yaml"))
SECTIONS = sorted(RunConfig.model_fields)


def refusal(text: str | bytes, path: Path) -> str:
    """Why `text` as a config file is refused."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_parses(path: Path) -> None:
    config = load_config(path)
    assert config.run.name == path.stem
    assert config.run_dir == Path("runs") / path.stem


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_every_arm_of_a_comparison_parses(path: Path) -> None:
    comparison = yaml.safe_load(path.read_text())
    for overrides in comparison["arms"].values():
        load_config(PROJECT / comparison["config"], [*comparison.get("overrides", ()), *overrides])


def test_shipped_configs_exist() -> None:
    assert {"demo", "smoke"} <= {path.stem for path in CONFIGS}


def test_a_printed_config_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(None, ["model.path=/models/m", "replay.max_uses=null", "env.levels=[2,1]"])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(path) == config


def test_no_file_and_an_empty_file_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert load_config(None) == load_config(tmp_path / "empty.yaml") == RunConfig()


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_of_a_section_is_named(section: str) -> None:
    with pytest.raises(ConfigError, match=f"^{section}\\.colour: unknown key; see `cacherl config` for all keys$"):
        parse_config({section: {"colour": 1}})


@pytest.mark.parametrize(
    ("tree", "name"),
    [({"colour": 1}, "colour"), ({"model": {"tiny": {"colour": 1}}}, r"model\.tiny\.colour")],
)
def test_an_unknown_key_above_and_below_is_named(tree: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: unknown key"):
        parse_config(tree)


def test_every_problem_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"run": {"seed": -1}, "learner": {"lr": "fast", "colour": 1}})
    lines = sorted(str(caught.value).splitlines())
    assert [line.split(":")[0] for line in lines] == ["learner.colour", "learner.lr", "run.seed"]
    assert lines[2] == "run.seed: Input should be greater than or equal to 0 (got -1)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.group_size=7"], "learner.batch_size 128 must be a multiple of rollout.group_size 7"),
        (
            ["learner.workers=5", "learner.batch_size=4", "rollout.group_size=4"],
            "learner.batch_size 4 must be at least learner.workers 5 x rollout.group_size 4: a group for each",
        ),
        (["rollout.group_size=1"], "rollout.group_size 1 leaves nothing to compare, .* with advantage.estimator group"),
        (["weights.publish_every=6", "replay.max_staleness=4"], "weights.publish_every 6 makes every group staler than .* 4"),
        (["learner.batch_size=16384"], "replay.capacity 10000 must be at least learner.batch_size 16384"),
        (["model.max_length=20000"], "learner.micro_batch_tokens 16384 must be at least model.max_length 20000"),
        (["reward.failure=1"], "reward: success 1.0 must exceed failure 1.0"),
        (["model.tiny.hidden=36", "model.tiny.heads=4"], "model.tiny: hidden 36 must be an even multiple of heads 4"),
        (["model.tiny.hidden=130"], "model.tiny: hidden 130 must be an even multiple of heads 4"),
        (["advantage.normalize_std=false", "advantage.epsilon=1e-3"], "advantage: epsilon 0.001 has no effect without .*_std"),
        (
            ["loss.name=dr_grpo", "advantage.epsilon=1e-3"],
            "advantage: epsilon 0.001 has no effect without .* dr_grpo leave out",
        ),
        (
            ["checkpoint.every=0", "checkpoint.keep_last=5"],
            "checkpoint: keep_last 5 has no effect without checkpoint.every above 0",
        ),
        (["checkpoint.every=0", "checkpoint.asynchronous=false"], "checkpoint: asynchronous False has no effect without"),
        (
            ["learner.schedule.kind=linear", "learner.schedule.warmup=100"],
            "learner.schedule.kind linear begins to fall after learner.schedule.warmup 100, which run.updates 100 does not",
        ),
        (["governor.replay_ratio=[1,4]", "governor.ess=[0.5,1]"], r"governor: ess \[0.5, 1.0\] are shares .* exceeds 1"),
        (["replay.capacity=300"], "replay: warmup_steps 128 [+] max_ahead 256 exceed capacity 300: .*; raise capacity"),
    ],
)
def test_values_that_contradict_each_other(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.name=a/b", r"run\.name: String should match pattern .* \(got 'a/b'\)"),
        ("run.stop_at_success=1.5", r"run\.stop_at_success: .* less than or equal to 1 \(got 1\.5\)"),
        ("run.deadline_s=inf", r"run\.deadline_s: .*\(got 'inf'\)"),
        ("learner.lr=nan", r"learner\.lr: Input should be a finite number \(got 'nan'\)"),
        ("learner.zero_stage=4", r"learner\.zero_stage: .* \(got 4\)"),
        ("env.levels=[]", r"env\.levels: Tuple should have at least 1 item"),
        ("env.levels=3", r"env\.levels: Input should be a valid tuple \(got 3\)"),
        ("rollout.temperature=0", r"rollout\.temperature: Input should be greater than 0 \(got 0\)"),
        ("env.transient_failure_rate=1", r"env\.transient_failure_rate: Input should be less than 1 \(got 1\)"),
        ("reward.step_penalty=0.1", r"reward\.step_penalty: Input should be less than or equal to 0 \(got 0\.1\)"),
        ("replay.capacity=many", r"replay\.capacity: Input should be a valid integer.* \(got 'many'\)"),
        ("loss.clip_high=1e39", r"loss\.clip_high: Input should be less than or equal to 1000000 \(got 1e[+]39\)"),
        ("learner=3", r"learner: .* \(got 3\)"),
        ("replay=null", r"replay: .* \(got None\)"),
        ("learner.lr=", r"learner\.lr: Input should be a valid number \(got None\)"),
        ("learner.lr.scale=2", r"learner\.lr: Input should be a valid number"),
        ("learner.lr=[1", "overrides: while parsing"),
        ("run.name=${nope}", "overrides: Interpolation key 'nope' not found"),
        ("model.path=???", "overrides: Missing mandatory value: path"),
        ("learner", r"override 'learner' must have the form section\.key=value"),
        ("=3", "config: unknown key"),
    ],
)
def test_a_malformed_value_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        load_config(None, [override])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, "capacity must be >= 1, got 0"),
        ({"warmup_steps": -1}, "warmup_steps must be >= 0, got -1"),
        ({"update_frequency": -1}, "update_frequency must be >= 0, got -1"),
        ({"max_ahead": 0}, "max_ahead must be >= 1, got 0"),
        ({"max_staleness": -1}, "max_staleness must be >= 0, got -1"),
        ({"max_uses": 0}, "max_uses must be >= 1, got 0"),
        ({"priority_exponent": 1.5}, r"priority_exponent must lie in \[0, 1\], got 1.5"),
        ({"importance_beta": -0.1}, r"importance_beta must lie in \[0, 1\], got -0.1"),
        ({"freshness_half_life": 0.0}, "freshness_half_life must be > 0, got 0.0"),
        ({"lease_s": 0.0}, "lease_s must be > 0, got 0.0"),
        ({"deadline_s": float("nan")}, "deadline_s must be > 0, got nan"),
        ({"reconnect_s": -1.0}, "reconnect_s must be > 0, got -1.0"),
        ({"capacity": 200, "warmup_steps": 100, "max_ahead": 101}, "warmup_steps 100 [+] max_ahead 101 exceed capacity 200"),
    ],
)
def test_replay_settings_check_themselves_alone_and_in_a_config(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ReplaySettings(**change)
    with pytest.raises(ConfigError, match=f"^replay: {message}"):
        parse_config({"replay": change})


def test_an_unknown_replay_setting_is_refused_without_a_config_too() -> None:
    with pytest.raises(TypeError, match="colour"):
        ReplaySettings(colour=1)  # type: ignore[call-arg]
    assert "capacity" in {field.name for field in fields(ReplaySettings)}


def test_overrides_win_over_the_file_and_later_ones_over_earlier(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run: {name: x, seed: 1}\nlearner: {lr: 0.5}\n")
    config = load_config(path, ["run.seed=2", "run.seed=3", "learner.lr=1e-4", "env.levels=[3]", "replay.max_staleness=null"])
    assert (config.run.name, config.run.seed, config.learner.lr) == ("x", 3, 1e-4)
    assert (config.env.levels, config.replay.max_staleness) == ((3,), None)


def test_home_is_expanded_in_the_folder_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config(None, ["run.dir=~/runs", "run.name=a"]).run_dir == tmp_path / "runs" / "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "a config must be a mapping of sections, got a list"),
        ("3", "Invalid loaded object type: int"),
        ("run: {name: x\n", "while parsing a flow mapping"),
        ("run: {}\nrun: {}\n", "found duplicate key run"),
        ("run: *nobody", "found undefined alias"),
        ("run: !!python/object:os.system {}", "could not determine a constructor"),
        (b"\xff\xfe\x00", "codec can't decode"),
        ("run: {name: '${'}", "no viable alternative"),
        ("run: {name: '${oc.env:NOBODY_SETS_THIS}'}", "'NOBODY_SETS_THIS' not found"),
        ("run: {name: '???'}", "Missing mandatory value: name"),
    ],
)
def test_an_unreadable_file_is_named(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    answer = refusal(text, path)
    assert str(path) in answer
    assert message in answer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: [1]", "run: Input should be a valid dictionary or instance of RunSection (got [1])"),
        ("run:\n", "run: Input should be a valid dictionary or instance of RunSection (got None)"),
        ("model: {tiny: [1]}", "model.tiny: Input should be a valid dictionary or instance of TinyModelSection (got [1])"),
        ("replay: [1]", "replay: Input should be a dictionary or an instance of ReplaySettings (got [1])"),
        ("1: 2", "1: Keys should be strings (got 1)"),
        ("run: {seed: 1.5}", "run.seed: Input should be a valid integer, got a number with a fractional part (got 1.5)"),
    ],
)
def test_what_is_no_mapping_of_known_values_is_named(text: str, message: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path / "c.yaml") == message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^no config file at {tmp_path}/nope.yaml$"):
        load_config(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match=f"^{tmp_path}: .*Is a directory"):
        load_config(tmp_path)


def test_a_loaded_config_cannot_be_changed() -> None:
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.run.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "replay"}, "mode 'replay' needs a recording: set path, or store redis and url"),
        ({"store": "redis"}, "store 'redis' and no url contradict each other: redis needs one, memory takes none"),
        ({"url": "redis://:secret@host/0"}, "store 'memory' and a url contradict each other"),
        ({"store": "redis", "url": "redis://h", "path": "x"}, "path 'x' is for store memory"),
        ({"tiers": ["normalised"]}, "must be distinct and include 'exact'"),
        ({"tiers": ["exact", "exact"]}, "must be distinct and include 'exact'"),
        ({"tiers": ["exact", "near"]}, "env.tool_cache.tiers.1: "),
        ({"similar": {"search": {"query": 0.9}}}, "belongs to tier 'normalised'; add it to tiers"),
        ({"tiers": ["exact", "normalised"], "similar": {"search": {"query": 2}}}, "env.tool_cache.similar.search.query: "),
        ({"max_entries": 0}, "env.tool_cache.max_entries: "),
    ],
)
def test_a_tool_cache_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"env": {"tool_cache": changes}})
    assert "env.tool_cache" in str(caught.value)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_written_config_holds_no_password_of_the_tool_cache() -> None:
    config = parse_config({"env": {"tool_cache": {"store": "redis", "url": "redis://:secret@host:6379/0"}}})
    assert config.model_dump(mode="json")["env"]["tool_cache"]["url"] == "redis://:***@host:6379/0"
    assert config.env.tool_cache.url == "redis://:secret@host:6379/0"
