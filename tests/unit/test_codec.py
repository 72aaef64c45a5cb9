"""Group <-> bytes: everything comes back, and nothing but a group is ever decoded."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacherl.codec import MAGIC, SCHEMA_VERSION, decode_group, encode_group
from cacherl.errors import CodecError
from cacherl.trajectory import NO_VERSION, Message, Status, Tier, ToolCall, Trajectory, TrajectoryGroup, Turn

text = st.text(max_size=20)
number = st.floats(allow_nan=False)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
rewards = st.dictionaries(text, number, max_size=3)
calls = st.builds(
    lambda name, arguments, error, repairs, tags, seconds, tier: ToolCall(
        name=name, arguments=arguments, ok=error is None, error=error, repairs=repairs, tags=tags, seconds=seconds, tier=tier
    ),
    text,
    st.dictionaries(st.text(max_size=4), json_value, max_size=3),
    st.none() | text.filter(bool),
    st.lists(text, max_size=2).map(tuple),
    st.lists(text, max_size=2).map(tuple),
    number,
    st.sampled_from([None, *get_args(Tier)]),
)
messages = st.builds(
    Message, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=text, name=st.none() | text
)
statuses = st.just(Status(kind="terminated")) | st.builds(Status, kind=st.just("truncated"), reason=text.filter(bool))


@st.composite
def trajectories(draw: st.DrawFn, task_id: str) -> Trajectory:
    prompt = draw(st.integers(0, 5))
    spans = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=3))
    turns, position = [], prompt
    length = prompt + sum(map(sum, spans))
    mask = np.zeros(length, dtype=np.bool_)
    for sampled, observed in spans:
        stop = position + sampled
        mask[position:stop] = True
        turns.append(
            Turn(
                completion=(position, stop),
                observation=(stop, stop + observed),
                text=draw(text),
                calls=tuple(draw(st.lists(calls, max_size=2))),
                messages=tuple(draw(st.lists(messages, max_size=2))),
                rewards=draw(rewards),
                finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
                state_hash=draw(text),
                potential=draw(st.none() | number),
                generate_s=draw(number),
                tool_s=draw(number),
            )
        )
        position = stop + observed
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logprobs = np.where(mask, -rng.exponential(size=length), 0).astype(np.float32)
    versions = np.where(mask, np.sort(rng.integers(0, 4, size=length)), NO_VERSION).astype(np.int32)
    return Trajectory(
        trajectory_id=draw(text),
        task_id=task_id,
        family=draw(text),
        level=draw(st.integers(-(2**31), 2**31)),
        split=draw(text),
        token_ids=rng.integers(-(2**31), 2**31, size=length, dtype=np.int64).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=logprobs,
        policy_versions=versions,
        temperature=draw(st.floats(0.01, 10)),
        turns=tuple(turns),
        rewards=draw(rewards),
        outcome=draw(number),
        status=draw(statuses),
        task_seed=draw(st.integers(-(2**63), 2**64 - 1)),
        rollout_seed=draw(st.integers(-(2**63), 2**64 - 1)),
        source=draw(st.sampled_from(["policy", "random", "demonstration"])),
        started_at=draw(number),
        duration_s=draw(number),
        prompt=tuple(draw(st.lists(messages, max_size=2))),
    )


@st.composite
def groups(draw: st.DrawFn) -> TrajectoryGroup:
    task_id = draw(text)
    return TrajectoryGroup(
        group_id=draw(text),
        task_id=task_id,
        trajectories=tuple(draw(st.lists(trajectories(task_id), min_size=1, max_size=3))),
        num_failed=draw(st.integers(0, 9)),
        created_at=draw(number),
    )


def plain(value: Any) -> Any:
    """A tree of plain values that compares with ==, arrays included, types kept."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.tolist())
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return tuple(plain(entry) for entry in value)
    return value


@given(group=groups(), compress=st.booleans())
def test_everything_round_trips(group: TrajectoryGroup, compress: bool) -> None:
    assert plain(decode_group(encode_group(group, compress=compress))) == plain(group)


@given(group=groups())
def test_half_precision_error_is_bounded(group: TrajectoryGroup) -> None:
    back = decode_group(encode_group(group, half_logprobs=True))
    for old, new in zip(group.trajectories, back.trajectories, strict=True):
        assert new.rollout_logprobs == pytest.approx(old.rollout_logprobs, rel=2**-11, abs=2**-24)
        assert np.array_equal(new.token_ids, old.token_ids)


@given(group=groups(), data=st.data())
def test_every_truncation_is_refused(group: TrajectoryGroup, data: st.DataObject) -> None:
    payload = encode_group(group, compress=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(CodecError):
        decode_group(payload[:cut])
    with pytest.raises(CodecError):
        decode_group(payload + b"\0")


@settings(max_examples=300)
@given(group=groups(), data=st.data())
def test_a_corrupted_payload_gives_a_whole_group_or_a_codec_error(group: TrajectoryGroup, data: st.DataObject) -> None:
    payload = bytearray(encode_group(group, compress=data.draw(st.booleans()), half_logprobs=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        back = decode_group(bytes(payload))
    except CodecError:
        return
    assert isinstance(back, TrajectoryGroup)
    decode_group(encode_group(back))


@given(body=json_value | st.binary(max_size=40))
def test_foreign_bodies_are_refused(body: Any) -> None:
    packed = body if isinstance(body, bytes) else msgpack.packb(body, default=str)
    with pytest.raises(CodecError):
        decode_group(struct.pack("<4sBB", MAGIC, SCHEMA_VERSION, 0) + packed)


def member(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "trajectory_id": "t",
        "task_id": "task",
        "family": "f",
        "level": 1,
        "split": "train",
        "token_ids": np.array([5, 6, 7, 8], np.int32),
        "loss_mask": np.array([False, True, True, False]),
        "rollout_logprobs": np.array([0, -0.5, -2, 0], np.float32),
        "policy_versions": np.array([-1, 3, 4, -1], np.int32),
        "temperature": 1.0,
        "turns": (Turn(completion=(1, 3), observation=(3, 4), text="x"),),
        "rewards": {"final": 1.0},
        "outcome": 1.0,
        "status": Status(kind="terminated"),
        "task_seed": 1,
        "rollout_seed": 2,
    }
    return Trajectory(**{**fields, **changes})


def group(*members: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(group_id="g", task_id="task", trajectories=members or (member(),))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "shorter than its header"),
        (b"PK\x03\x04zip file", "not a trajectory group"),
        (struct.pack("<4sBB", MAGIC, SCHEMA_VERSION + 1, 0) + b"\x90", "schema version 3, this program reads 1 and 2"),
        (struct.pack("<4sBB", MAGIC, SCHEMA_VERSION, 8) + b"\x90", "unknown codec 0x08"),
        (struct.pack("<4sBB", MAGIC, SCHEMA_VERSION, 0) + b"\x90", "group has 0 fields, expected 12"),
    ],
)
def test_the_refusal_says_why(payload: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode_group(payload)


def test_an_oversized_payload_is_refused_before_it_is_parsed() -> None:
    payload = encode_group(group())
    with pytest.raises(CodecError, match=f"has {len(payload)} bytes, the limit is {len(payload) - 1}"):
        decode_group(payload, max_bytes=len(payload) - 1)


def test_compressed_tokens_may_not_grow_beyond_the_limit() -> None:
    length = 100_000
    zeros = member(
        token_ids=np.zeros(length, np.int32),
        loss_mask=np.zeros(length, np.bool_),
        rollout_logprobs=np.zeros(length, np.float32),
        policy_versions=np.full(length, -1, np.int32),
        turns=(),
    )
    payload = encode_group(group(zeros), compress=True)
    assert len(payload) < 20_000
    with pytest.raises(CodecError, match="100000 tokens"):
        decode_group(payload, max_bytes=20_000)


def test_what_a_model_writes_survives() -> None:
    """Lone surrogates and integers beyond 64 bits are legal in the JSON that a model emits."""
    call = ToolCall(name="\ud800", arguments={"n": 10**30, "s": "\udfff"}, ok=True)
    turn = Turn(completion=(1, 3), observation=(3, 4), text="\ud83d", calls=(call,))
    back = decode_group(encode_group(group(member(turns=(turn,)))))
    assert back.trajectories[0].turns[0] == turn


def test_a_prompt_that_siblings_share_is_stored_once() -> None:
    prompts = [(Message(role="user", content=text * 500),) for text in "ab"]
    back = decode_group(encode_group(group(*(member(prompt=prompts[at]) for at in (0, 1, 0)), member())))
    assert [each.prompt for each in back.trajectories] == [prompts[0], prompts[1], prompts[0], ()]
    one, eight = (len(encode_group(group(*[member(prompt=prompts[0])] * count))) for count in (1, 8))
    assert eight - one < 7 * len(encode_group(group())) + 500


def test_numpy_scalars_are_stored_as_numbers() -> None:
    back = decode_group(encode_group(group(member(outcome=np.float32(0.5), rewards={"final": np.float64(2)}))))
    assert (back.trajectories[0].outcome, back.trajectories[0].rewards) == (0.5, {"final": 2.0})


def test_what_cannot_be_carried_is_refused_at_the_push() -> None:
    call = ToolCall(name="f", arguments={"x": object()}, ok=True)
    turn = Turn(completion=(1, 3), observation=(3, 4), text="", calls=(call,))
    with pytest.raises(CodecError, match="group 'g' cannot be encoded: object"):
        encode_group(group(member(turns=(turn,))))


def test_decoded_arrays_are_writable_and_apart() -> None:
    back = decode_group(encode_group(group(member(), member())))
    back.trajectories[0].token_ids[:] = 0
    assert back.trajectories[1].token_ids.tolist() == [5, 6, 7, 8]


def test_payloads_of_schema_version_1_are_read_with_defaults() -> None:
    """Version 1 had one field less in each call, turn, trajectory and group."""
    call = ToolCall(name="f", arguments={"x": 1}, ok=True, tier="exact")
    turn = Turn(completion=(1, 3), observation=(3, 4), text="t", calls=(call,), potential=0.5)
    payload = encode_group(group(member(turns=(turn,), prompt=(Message(role="user", content="Who?"),))))
    body = msgpack.unpackb(payload[6:])
    older = body[-2][0][:-1]
    older[-1] = [[*older[-1][0][:5], [older[-1][0][5][0][:-1]], *older[-1][0][6:-1]]]
    body[-2:] = [[older]]
    back = decode_group(struct.pack("<4sBB", MAGIC, 1, 0) + msgpack.packb(body)).trajectories[0]
    expected = dataclasses.replace(turn, calls=(dataclasses.replace(call, tier=None),), potential=None)
    assert (back.turns, back.prompt, back.outcome) == ((expected,), (), member().outcome)
