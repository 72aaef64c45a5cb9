"""TrajectoryGroup <-> bytes: what the replay service stores, without pickle and with a schema version.

A payload is ``magic[4] | schema version[1] | codec[1] | body``; the body is one msgpack list, its arrays raw little-endian
and concatenated over the group's members::

    token_ids int32 [sum T] | loss_mask packed bits [sum T] | log-probabilities of sampled tokens only | version runs

The codec byte says how the arrays are written, so that payloads written with different options live in one pool:
bit 0, token ids compressed with zstd; bit 1, log-probabilities as float16. The latter loses precision: relative error at most
2**-11 (4.9e-4), values below -65504 clipped. Everything else comes back exactly as it was, tuples in tool arguments as lists.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, cast, get_args

import msgpack
import numpy as np
import numpy.typing as npt

from cacherl import wire
from cacherl.errors import CodecError
from cacherl.trajectory import (
    NO_VERSION,
    Message,
    Role,
    Source,
    Status,
    StatusKind,
    Tier,
    ToolCall,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

SCHEMA_VERSION: Final = 2
#: What this program reads. Version 1 knew no tier of a call, no potential of a turn and no prompts.
READABLE: Final = (1, SCHEMA_VERSION)
MAGIC: Final = b"CRLG"
#: Default limit of one payload and of its arrays once decompressed, in bytes.
MAX_BYTES: Final = 256 * 2**20

ZSTD_TOKENS: Final = 1
HALF_LOGPROBS: Final = 2

_HEADER = struct.Struct("<4sBB")
_LOWEST_HALF = -65504.0
_TURN_FIELDS = 13
_CALL_FIELDS = 7
_MEMBER_FIELDS = 15
_GROUP_FIELDS = 12


def encode_group(group: TrajectoryGroup, *, compress: bool = False, half_logprobs: bool = False) -> bytes:
    """Write a group.

    Args:
        compress: token ids with zstd level 1 (needs the package zstandard): less memory and network, not less time on loopback.
        half_logprobs: log-probabilities as float16; see the module's docstring for the error.

    Raises:
        CodecError: a field holds what the format cannot carry (an object that is not JSON in a tool call's arguments).
    """
    codec = (ZSTD_TOKENS if compress else 0) | (HALF_LOGPROBS if half_logprobs else 0)
    try:
        body = msgpack.packb(_dump_group(group, codec), default=_plain, unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"group {group.group_id!r} cannot be encoded: {error}") from error
    return _HEADER.pack(MAGIC, SCHEMA_VERSION, codec) + cast(bytes, body)


def decode_group(payload: bytes, *, max_bytes: int = MAX_BYTES) -> TrajectoryGroup:
    """Read a group; its arrays are writable and its own.

    Raises:
        CodecError: the payload is truncated, longer than `max_bytes` (also once decompressed), foreign, of an unknown
            schema version or codec, of the wrong types, or not a valid group. Nothing partial is ever returned.
    """
    codec = _check_header(payload, max_bytes)
    try:
        body = msgpack.unpackb(memoryview(payload)[_HEADER.size :], unicode_errors="surrogatepass", max_ext_len=0)
        return _load_group(body, codec, max_bytes)
    except CodecError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise CodecError(f"payload of {len(payload)} bytes is not a valid group: {error}") from error


def _check_header(payload: bytes, max_bytes: int) -> int:
    if len(payload) > max_bytes:
        raise CodecError(f"payload has {len(payload)} bytes, the limit is {max_bytes}")
    if len(payload) < _HEADER.size:
        raise CodecError(f"payload of {len(payload)} bytes is shorter than its header of {_HEADER.size}")
    magic, version, codec = _HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise CodecError(f"payload starts with {bytes(magic)!r}, not {MAGIC!r}: it is not a trajectory group")
    if version not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise CodecError(f"payload has schema version {version}, this program reads {known}")
    if codec & ~(ZSTD_TOKENS | HALF_LOGPROBS):
        raise CodecError(f"payload has unknown codec {codec:#04x}")
    return int(codec)


# Writing


def _dump_group(group: TrajectoryGroup, codec: int) -> list[Any]:
    members = group.trajectories
    mask = np.concatenate([member.loss_mask for member in members])
    tokens = np.concatenate([member.token_ids for member in members]).astype("<i4", copy=False).tobytes()
    logprobs = np.concatenate([member.rollout_logprobs for member in members])[mask]
    versions = np.concatenate([member.policy_versions for member in members])[mask]
    arguments = [call.arguments for member in members for turn in member.turns for call in turn.calls]
    prompts = list(dict.fromkeys(member.prompt for member in members))  # siblings share theirs
    return [
        group.group_id,
        group.task_id,
        group.num_failed,
        group.created_at,
        [len(member) for member in members],
        _zstd().ZstdCompressor(level=1).compress(tokens) if codec & ZSTD_TOKENS else tokens,
        np.packbits(mask).tobytes(),
        np.clip(logprobs, _LOWEST_HALF, 0).astype("<f2").tobytes()
        if codec & HALF_LOGPROBS
        else logprobs.astype("<f4").tobytes(),
        _runs(versions),
        json.dumps(arguments, default=_plain),
        [_dump_member(member, prompts.index(member.prompt)) for member in members],
        [_dump_messages(prompt) for prompt in prompts],
    ]


def _runs(values: npt.NDArray[np.int32]) -> list[int]:
    """Run lengths: [value, count, value, count, ...]."""
    if not len(values):
        return []
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    counts = np.diff(starts, append=len(values))
    return np.stack([values[starts], counts], axis=1).ravel().tolist()


def _dump_member(member: Trajectory, prompt: int) -> list[Any]:
    return [
        member.trajectory_id,
        member.family,
        member.level,
        member.split,
        member.temperature,
        member.rewards,
        member.outcome,
        member.status.kind,
        member.status.reason,
        [member.task_seed, member.rollout_seed],
        member.source,
        member.started_at,
        member.duration_s,
        [_dump_turn(turn) for turn in member.turns],
        prompt,
    ]


def _dump_turn(turn: Turn) -> list[Any]:
    return [
        *turn.completion,
        *turn.observation,
        turn.text,
        [[call.name, call.ok, call.error, call.repairs, call.tags, call.seconds, call.tier] for call in turn.calls],
        _dump_messages(turn.messages),
        turn.rewards,
        turn.finish_reason,
        turn.state_hash,
        turn.generate_s,
        turn.tool_s,
        turn.potential,
    ]


def _dump_messages(messages: tuple[Message, ...]) -> list[list[Any]]:
    return [[message.role, message.content, message.name] for message in messages]


def _plain(value: Any) -> Any:
    """Numpy scalars and read-only mappings as what they stand for."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r:.80} has no portable form")


# Reading


def _load_group(body: Any, codec: int, max_bytes: int) -> TrajectoryGroup:
    *values, stored = _since_version_2(body, _GROUP_FIELDS, "group", [[]])
    group_id, task_id, failed, created, lengths, *parts, arguments, members = values
    prompts = [_load_messages(prompt) for prompt in wire.as_list(stored, "prompts")]
    sizes = [wire.as_natural(length, "length") for length in wire.as_list(lengths, "lengths")]
    if len(wire.as_list(members, "members")) != len(sizes):
        raise CodecError(f"{len(members)} members, but {len(sizes)} lengths")
    arrays = _load_arrays(sizes, parts, codec, max_bytes)
    task = wire.as_text(task_id, "task_id")
    calls = iter(wire.as_list(json.loads(wire.as_text(arguments, "arguments")), "arguments"))
    trajectories = tuple(_load_member(member, task, part, calls, prompts) for member, part in zip(members, arrays, strict=True))
    if next(calls, None) is not None:
        raise CodecError("more tool arguments than tool calls")
    return TrajectoryGroup(
        group_id=wire.as_text(group_id, "group_id"),
        task_id=task,
        trajectories=trajectories,
        num_failed=wire.as_natural(failed, "num_failed"),
        created_at=wire.as_number(created, "created_at"),
    )


_Arrays = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.float32], npt.NDArray[np.int32]]


def _load_arrays(sizes: list[int], parts: list[Any], codec: int, max_bytes: int) -> Iterator[_Arrays]:
    tokens, mask, logprobs, runs = parts
    total = sum(sizes)
    if total * 4 > max_bytes:
        raise CodecError(f"group has {total} tokens, more than {max_bytes} bytes hold")
    raw = _unzip(wire.as_bytes(tokens, "token_ids"), total * 4) if codec & ZSTD_TOKENS else tokens
    ids = np.frombuffer(wire.as_bytes(raw, "token_ids", total * 4), dtype="<i4").astype(np.int32)
    packed = np.frombuffer(wire.as_bytes(mask, "loss_mask", (total + 7) // 8), dtype=np.uint8)
    flags = np.unpackbits(packed, count=total).astype(np.bool_)
    sampled = int(flags.sum())
    kind = np.dtype("<f2" if codec & HALF_LOGPROBS else "<f4")
    scores = np.zeros(total, dtype=np.float32)
    scores[flags] = np.frombuffer(wire.as_bytes(logprobs, "logprobs", sampled * kind.itemsize), dtype=kind)
    versions = np.full(total, NO_VERSION, dtype=np.int32)
    versions[flags] = _expand(runs, sampled)
    bounds = [0, *np.cumsum(sizes).tolist()]
    return ((ids[a:b], flags[a:b], scores[a:b], versions[a:b]) for a, b in pairwise(bounds))


def _expand(runs: Any, expected: int) -> npt.NDArray[np.int32]:
    flat = [wire.as_integer(entry, "version run") for entry in wire.as_list(runs, "versions")]
    if len(flat) % 2 or min(flat[1::2], default=1) < 1 or sum(flat[1::2]) != expected:
        raise CodecError(f"version runs do not cover the {expected} sampled tokens")
    return np.repeat(np.array(flat[::2], dtype=np.int32), flat[1::2])


def _load_member(
    member: Any, task_id: str, arrays: _Arrays, arguments: Iterator[Any], prompts: list[tuple[Message, ...]]
) -> Trajectory:
    token_ids, loss_mask, logprobs, versions = arrays
    *values, prompt = _since_version_2(member, _MEMBER_FIELDS, "trajectory", 0)
    name, family, level, split, temperature, rewards, outcome, kind, reason, seeds, source, started, duration, turns = values
    task_seed, rollout_seed = wire.fields(seeds, 2, "seeds")
    return Trajectory(
        trajectory_id=wire.as_text(name, "trajectory_id"),
        task_id=task_id,
        family=wire.as_text(family, "family"),
        level=wire.as_integer(level, "level"),
        split=wire.as_text(split, "split"),
        token_ids=token_ids,
        loss_mask=loss_mask,
        rollout_logprobs=logprobs,
        policy_versions=versions,
        temperature=wire.as_number(temperature, "temperature"),
        turns=tuple(_load_turn(turn, arguments) for turn in wire.as_list(turns, "turns")),
        rewards=wire.as_rewards(rewards),
        outcome=wire.as_number(outcome, "outcome"),
        status=Status(
            kind=wire.as_choice(kind, get_args(StatusKind), "status"), reason=wire.as_optional_text(reason, "status reason")
        ),
        task_seed=wire.as_integer(task_seed, "task_seed"),
        rollout_seed=wire.as_integer(rollout_seed, "rollout_seed"),
        source=wire.as_choice(source, get_args(Source), "source"),
        started_at=wire.as_number(started, "started_at"),
        duration_s=wire.as_number(duration, "duration_s"),
        prompt=prompts[wire.as_natural(prompt, "prompt")],
    )


def _load_turn(turn: Any, arguments: Iterator[Any]) -> Turn:
    values = _since_version_2(turn, _TURN_FIELDS, "turn", None)
    start, stop, after, end, text, calls, messages, rewards, finish, state, generate_s, tool_s, potential = values
    return Turn(
        completion=(wire.as_natural(start, "completion"), wire.as_natural(stop, "completion")),
        observation=(wire.as_natural(after, "observation"), wire.as_natural(end, "observation")),
        text=wire.as_text(text, "text"),
        calls=tuple(_load_call(call, arguments) for call in wire.as_list(calls, "calls")),
        messages=_load_messages(messages),
        rewards=wire.as_rewards(rewards),
        finish_reason=wire.as_text(finish, "finish_reason"),
        state_hash=wire.as_text(state, "state_hash"),
        generate_s=wire.as_number(generate_s, "generate_s"),
        tool_s=wire.as_number(tool_s, "tool_s"),
        potential=None if potential is None else wire.as_number(potential, "potential"),
    )


def _load_call(call: Any, arguments: Iterator[Any]) -> ToolCall:
    name, ok, error, repairs, tags, seconds, tier = _since_version_2(call, _CALL_FIELDS, "call", None)
    if not isinstance(ok, bool):
        raise CodecError(f"call ok must be a boolean, got {ok!r:.40}")
    return ToolCall(
        name=wire.as_text(name, "call name"),
        arguments=wire.as_mapping(next(arguments, None), "arguments"),
        ok=ok,
        error=wire.as_optional_text(error, "call error"),
        repairs=wire.as_texts(repairs, "repairs"),
        tags=wire.as_texts(tags, "tags"),
        seconds=wire.as_number(seconds, "call seconds"),
        tier=None if tier is None else wire.as_choice(tier, get_args(Tier), "call tier"),
    )


def _since_version_2(values: Any, count: int, name: str, default: Any) -> list[Any]:
    """`count` fields, of which version 1 lacks the last."""
    if len(wire.as_list(values, name)) == count - 1:
        values = [*values, default]
    return wire.fields(values, count, name)


def _load_messages(messages: Any) -> tuple[Message, ...]:
    return tuple(_load_message(message) for message in wire.as_list(messages, "messages"))


def _load_message(message: Any) -> Message:
    role, content, name = wire.fields(message, 3, "message")
    return Message(
        role=wire.as_choice(role, get_args(Role), "role"),
        content=wire.as_text(content, "content"),
        name=wire.as_optional_text(name, "message name"),
    )


def _unzip(value: bytes, size: int) -> bytes:
    zstd = _zstd()
    try:
        declared = zstd.frame_content_size(value)
        if declared != size:
            raise CodecError(f"compressed token_ids hold {declared} bytes, expected {size}")
        return cast(bytes, zstd.ZstdDecompressor().decompress(value, max_output_size=size)) if size else b""
    except zstd.ZstdError as error:
        raise CodecError(f"compressed token_ids: {error}") from error


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise CodecError("token ids compressed with zstd need the package zstandard; install it") from None
    return zstandard
