"""Frames of the sandbox: whole messages or an error, never more memory than allowed."""

from __future__ import annotations

import os

import pytest

from envs.sandbox import wire


def sent(data: bytes) -> int:
    """The reading end of a pipe that holds `data` and is closed."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return read


def test_messages_arrive_whole_and_in_order():
    messages = [{"tool": "python", "text": "é\n" * 1000}, {}, {"n": [1, None, "\U0001f600"]}]
    pipe = sent(b"".join(map(wire.encode, messages)))
    assert [wire.receive(pipe) for _ in messages] == messages
    assert wire.receive(pipe) is None
    os.close(pipe)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff\xff\xff\xff", r"a frame of 4294967295 bytes, 16777216 are allowed"),
        (b"\x00\x00", "cut off"),
        (b"\x00\x00\x00\x05{}", "cut off"),
        (b"\x00\x00\x00\x00", "not JSON"),
        (b"\x00\x00\x00\x02[]", "not an object"),
        (b"\x00\x00\x00\x02\xff\xff", "not JSON"),
        (wire.HEADER.pack(20_000) + b"[" * 20_000, "not JSON"),
    ],
)
def test_anything_else_is_refused(data, problem):
    pipe = sent(data)
    with pytest.raises(wire.FrameError, match=problem):
        wire.receive(pipe)
    os.close(pipe)
