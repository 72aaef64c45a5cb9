"""Frames between owner, guard and interpreter: four bytes of length, then JSON. No pickle, no length that is not capped."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

#: Bytes of one frame from a trusted peer: a task's files, or a program text.
LARGEST = 16 * 2**20
HEADER = struct.Struct(">I")


class FrameError(Exception):
    """The peer sent something that is not a frame."""


def encode(message: dict[str, Any]) -> bytes:
    """The frame of a message."""
    body = json.dumps(message).encode()
    return HEADER.pack(len(body)) + body


def send(descriptor: int, message: dict[str, Any]) -> None:
    """Write a frame to a blocking descriptor.

    Raises:
        OSError: the peer is gone.
    """
    write_all(descriptor, encode(message))


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def receive(descriptor: int) -> dict[str, Any] | None:
    """Read a frame from a blocking descriptor; None when the peer has closed it.

    Raises:
        FrameError: a frame is too long, cut off or not an object.
    """
    header = _exactly(descriptor, HEADER.size)
    if header is None:
        return None
    body = _exactly(descriptor, body_length(header))
    if body is None:
        raise FrameError("the frame is cut off")
    return decode(body)


def body_length(header: bytes) -> int:
    """The number of bytes that follow a header.

    Raises:
        FrameError: more than `LARGEST`.
    """
    length: int = HEADER.unpack(header)[0]
    if length > LARGEST:
        raise FrameError(f"a frame of {length} bytes, {LARGEST} are allowed")
    return length


def decode(body: bytes) -> dict[str, Any]:
    """The message of a frame's body.

    Raises:
        FrameError: it is not a JSON object.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise FrameError("not an object")
    return message


def _exactly(descriptor: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = os.read(descriptor, size - len(data))
        if not part:
            if data:
                raise FrameError("the frame is cut off")
            return None
        data += part
    return data
