"""Chat transcripts and exported pools as demonstrations; a pool that does not begin empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from actors.chat import Chat
from actors.transcripts import read_transcripts
from cacherl.config import RunConfig, parse_config
from cacherl.errors import ConfigError
from cacherl.trajectory import NO_VERSION, TrajectoryGroup
from deploy.demonstrations import load_demonstrations, prefill
from deploy.warm_start import base_model
from envs.base import TaskSource
from envs.parser import action_format
from learner_data import group
from replay_service.archive import export_pool, write_archive
from replay_service.server import ReplayServer
from replay_service.store import Replay

SYSTEM = {"role": "system", "content": "answer"}
USER = {"role": "user", "content": "what is the color of the river ?"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": '{"x": 1}'}}]}
CALL_1 = {**CALL, "tool_calls": [{"id": "c1", **CALL["tool_calls"][0]}]}  # type: ignore[dict-item, index]
TOOL = {"role": "tool", "name": "look", "content": "blue"}
ANSWER = {"role": "assistant", "content": "the answer is blue"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from envs.registry import load_source

    config = parse_config({"model": {"max_length": 128}})
    return base_model(config, load_source(config.env), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return AutoTokenizer.from_pretrained(base)


def written(tmp_path: Path, *conversations: Any) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in conversations) + "\n")
    return path


def config(**warm_start: Any) -> RunConfig:
    return parse_config({"model": {"max_length": 128}, "warm_start": {"updates": 1, **warm_start}})


def test_a_conversation_is_imitated_where_the_assistant_speaks(tmp_path: Path, tokenizer: Any) -> None:
    path = written(tmp_path, {"messages": [SYSTEM, USER, CALL, TOOL, ANSWER, USER]})
    hermes = action_format("hermes")
    (found,) = read_transcripts(path, tokenizer, hermes, max_length=1000, limit=9)
    chat = Chat(tokenizer)
    prompt = chat.prompt_ids([message_of(SYSTEM), message_of(USER)])
    (parsed,) = hermes.parse(found.turns[0].text, finish_reason="stop")
    assert (parsed.name, dict(parsed.arguments), parsed.problem) == ("look", {"x": 1}, None)
    call = chat.completion_ids(found.turns[0].text)
    result, answer = chat.observation_ids([message_of(TOOL)]), chat.completion_ids("the answer is blue")
    assert found.token_ids.tolist() == [*prompt, *call, *result, *answer]
    mask = [False] * len(prompt) + [True] * len(call) + [False] * len(result) + [True] * len(answer)
    assert found.loss_mask.tolist() == mask
    assert (found.source, len(found.turns), found.turns[1].text) == ("demonstration", 2, "the answer is blue")


def test_what_chat_apis_write_in_other_words_is_the_same_conversation(tmp_path: Path, tokenizer: Any) -> None:
    """A result under its call's id instead of a name, and content in parts."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    tokenizer.chat_template = tokenizer.chat_template.replace("message['content']", "message.name ~ ' ' ~ message['content']")
    result = {
        "role": "tool",
        "name": None,
        "tool_call_id": "c1",
        "content": [{"type": "text", "text": "bl"}, {"type": "text", "text": "ue"}],
    }
    path = written(tmp_path, {"messages": [USER, CALL, TOOL, ANSWER]}, {"messages": [USER, CALL_1, result, ANSWER]})
    plain, other = read_transcripts(path, tokenizer, action_format("hermes"), max_length=1000, limit=9)
    assert other.token_ids.tolist() == plain.token_ids.tolist()
    nameless = written(tmp_path, {"messages": [USER, CALL, {**TOOL, "name": None}, ANSWER]})
    (unlike,) = read_transcripts(nameless, tokenizer, action_format("hermes"), max_length=1000, limit=9)
    assert unlike.token_ids.tolist() != plain.token_ids.tolist()  # the template does show the name


def message_of(raw: dict[str, Any]) -> Any:
    from cacherl.trajectory import Message

    return Message(role=raw["role"], content=raw["content"], name=raw.get("name"))


def test_a_conversation_may_bring_its_tools(tmp_path: Path, base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{% if tools %}{{ tools[0].name }} {% endif %}" + tokenizer.chat_template
    path = written(tmp_path, {"messages": [USER, ANSWER], "tools": [{"name": "river"}]}, {"messages": [USER, ANSWER]})
    told, untold = read_transcripts(path, tokenizer, action_format("cacherl"), max_length=100, limit=2)
    assert told.token_ids.tolist() == [*tokenizer.encode("river "), *untold.token_ids.tolist()]


def test_long_ones_are_left_out_and_the_limit_holds(tmp_path: Path, tokenizer: Any) -> None:
    short, long = {"messages": [USER, ANSWER]}, {"messages": [USER, ANSWER, *[USER, ANSWER] * 20]}
    path = written(tmp_path, long, short, short, short)
    found = read_transcripts(path, tokenizer, action_format("cacherl"), max_length=60, limit=2)
    assert [one.trajectory_id for one in found] == ["chats.jsonl-2", "chats.jsonl-3"]
    with pytest.raises(ConfigError, match=r"no conversation of at most model\.max_length 5 tokens"):
        read_transcripts(path, tokenizer, action_format("cacherl"), max_length=5, limit=2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("\n{", "line 2 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('{"messages": []}', "line 1 is not a conversation: ValueError.*no assistant message"),
        ('{"chat": []}', "line 1 is not a conversation: KeyError.*messages"),
        (json.dumps({"messages": [{"role": "robot", "content": ""}, ANSWER]}), "role 'robot' is none of system, user"),
        (json.dumps({"messages": [ANSWER, USER, ANSWER]}), "line 1 is not a conversation: .*nothing comes before its first"),
        (json.dumps({"messages": [{"role": "user", "content": None}, ANSWER]}), "content None is neither text nor parts"),
        (json.dumps({"messages": [USER, CALL, {**TOOL, "content": [{"type": "image"}]}, ANSWER]}), "'image'.* is neither text"),
        (json.dumps({"messages": [USER, CALL_1, {**TOOL, "tool_call_id": "c2"}, ANSWER]}), "tool_call_id 'c2' is the id of no"),
        (
            json.dumps({"messages": [USER, {**CALL, "tool_calls": [{"function": {"name": "look", "arguments": "{"}}]}]}),
            "line 1",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, tokenizer: Any, line: str, message: str) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=message):
        read_transcripts(path, tokenizer, action_format("cacherl"), max_length=100, limit=1)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"source": "transcripts"}, "sources transcripts and replay need a path, teacher none"),
        ({"path": "x.jsonl"}, "sources transcripts and replay need a path, teacher none"),
        ({"source": "replay", "path": "x", "sloppiness": 0.5}, r"sloppiness 0\.5 is the teacher's, source replay has none"),
    ],
)
def test_contradictions_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**section)


async def test_the_config_chooses_the_source(tmp_path: Path, base: Path, source: TaskSource) -> None:
    path = written(tmp_path, {"messages": [USER, ANSWER]})
    from_file = await load_demonstrations(config(source="transcripts", path=path), source, base)
    by_teacher = await load_demonstrations(config(demonstrations=3), source, base)
    assert [one.family for one in from_file] == ["transcript"]
    assert len(by_teacher) == 3
    assert {one.family for one in by_teacher} == {"research"}


async def test_an_exported_pool_is_imitated_and_fills_another(tmp_path: Path, base: Path, source: TaskSource) -> None:
    rng = np.random.default_rng(0)
    groups = [group(rng, f"g{index}", size=4, version=40) for index in range(3)]
    archive = tmp_path / "pool.bin"
    settings = config(prefill=archive, source="replay", path=archive)
    with ReplayServer(tmp_path / "server") as server:
        with Replay(server.url, "old", settings.replay) as old:
            for one in groups:
                old.push(one, priority=2.0)
            export_pool(old, archive)
        successes = await load_demonstrations(settings, source, base)
        assert len(successes) == sum(int(one.outcomes.sum()) for one in groups) == 6
        with Replay(server.url, "new", settings.replay) as new:
            new.check()
            assert prefill(settings, new, base).imported == 3
            stats = new.stats()
            assert (stats.groups, stats.arrived, stats.versions) == (3, 12, {0: 3})
            back = new.fetch(["g0"])[0]
            assert back is not None
            assert back.version_range == (0, 0)
            np.testing.assert_array_equal(back.trajectories[0].rollout_logprobs, groups[0].trajectories[0].rollout_logprobs)


async def test_tokens_that_read_as_another_text_are_refused(
    tmp_path: Path, base: Path, tokenizer: Any, source: TaskSource
) -> None:
    """A tokenizer of as many tokens, which would teach nonsense without a word."""
    from dataclasses import replace

    ids = [*tokenizer.encode("the is the"), tokenizer.eos_token_id]
    made = group(np.random.default_rng(0), "g0", size=2).trajectories[1]
    start = made.turns[0].completion[0]
    span = (start, start + len(ids))
    mask = np.zeros(span[1], dtype=np.bool_)
    mask[slice(*span)] = True

    def saying(text: str) -> TrajectoryGroup:
        turn = replace(made.turns[0], completion=span, observation=(span[1], span[1]), text=text)
        member = replace(
            made,
            token_ids=np.array([*made.token_ids[:start], *ids], dtype=np.int32),
            loss_mask=mask,
            rollout_logprobs=np.where(mask, -1, 0).astype(np.float32),
            policy_versions=np.where(mask, 0, NO_VERSION).astype(np.int32),
            turns=(turn,),
        )
        return TrajectoryGroup(group_id="g0", task_id=made.task_id, trajectories=(member,))

    archive = tmp_path / "pool.bin"
    settings = config(source="replay", path=archive, prefill=archive)
    write_archive(archive, [(1.0, saying("the is the"))])
    assert len(await load_demonstrations(settings, source, base)) == 1
    write_archive(archive, [(1.0, saying("river the what"))])
    with pytest.raises(
        ConfigError, match=r"path: group g0 is of a model with another tokenizer.*'river the what'.*'the is the'"
    ):
        await load_demonstrations(settings, source, base)
    with ReplayServer(tmp_path / "server") as server, Replay(server.url, "new", settings.replay) as new:
        with pytest.raises(ConfigError, match=r"prefill: group g0 is of a model with another tokenizer"):
            prefill(settings, new, base)
        assert new.stats().groups == 0


async def test_tokens_of_another_model_are_refused(tmp_path: Path, base: Path, source: TaskSource) -> None:
    from dataclasses import replace

    made = group(np.random.default_rng(0), "g0", size=2)
    foreign = replace(made.trajectories[1], token_ids=made.trajectories[1].token_ids + np.int32(100_000))
    archive = tmp_path / "pool.bin"
    settings = config(source="replay", path=archive)
    with ReplayServer(tmp_path / "server") as server, Replay(server.url, "old", settings.replay) as old:
        old.push(replace(made, trajectories=(made.trajectories[0], foreign)), priority=1.0)
        export_pool(old, archive)
    with pytest.raises(ConfigError, match=r"warm_start\.path: token 100\d+ of group g0 is not in the model's vocabulary"):
        await load_demonstrations(settings, source, base)
