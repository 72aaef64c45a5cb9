"""Landlock: which files jailed code may read, and that it signals nobody outside of the jail."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from envs.sandbox.worker import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
#: Scoped signals came with this version (Linux 6.12).
NEEDED = 6

_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
#: Every right of version 5: execute, write, read, list, remove, make, refer, truncate, device ioctl.
_ALL_FILES = (1 << 16) - 1
#: Bind and connect over TCP.
_ALL_NETWORK = 0b11
#: Abstract Unix sockets and signals.
_ALL_SCOPES = 0b11


def version() -> int:
    """The kernel's Landlock version.

    Raises:
        OSError: it has none, or it is switched off.
    """
    return kernel.syscall(_CREATE, ctypes.c_void_p(None), 0, _VERSION_FLAG)


def confine(readable: Iterable[str]) -> None:
    """From now on this process reads nothing but what lies under `readable`, writes and executes nothing, uses no TCP, and
    sends no signal outside of itself and its children.

    Raises:
        OSError: the kernel refuses.
    """
    attributes = struct.pack("=QQQ", _ALL_FILES, _ALL_NETWORK, _ALL_SCOPES)
    rules = kernel.syscall(_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    for path in readable:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE  # noqa: PTH112
        kernel.syscall(_ADD, rules, _PATH_BENEATH, ctypes.c_char_p(struct.pack("=Qi", rights, target)), 0)
        os.close(target)
    kernel.syscall(_RESTRICT, rules, 0)
    os.close(rules)
