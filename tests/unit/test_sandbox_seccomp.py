"""The system-call filter, run here instead of in the kernel, for both processors that it knows."""

from __future__ import annotations

import errno
import struct

import pytest

from envs.sandbox.worker import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: Name -> number on x86_64 and on aarch64, from the kernel's tables.
NUMBERS = {
    "read": (0, 63), "write": (1, 64), "openat": (257, 56), "mmap": (9, 222), "exit_group": (231, 94),
    "futex": (202, 98), "getrandom": (318, 278), "landlock_restrict_self": (446, 446), "socket": (41, 198),
    "connect": (42, 203), "ptrace": (101, 117), "execve": (59, 221), "clone": (56, 220), "clone3": (435, 435),
    "mount": (165, 40), "bpf": (321, 280), "prlimit64": (302, 261), "unshare": (272, 97), "setns": (308, 268),
    "process_vm_readv": (310, 270), "io_uring_setup": (425, 425), "keyctl": (250, 219), "fchmodat": (268, 53),
    "sched_setaffinity": (203, 122), "fchmodat2": (452, 452),
}  # fmt: skip


def decide(program: bytes, *, architecture: int, number: int, argument: int = 0) -> int:
    """What the filter returns: a plain interpreter of the few instructions that it uses."""
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, operand)[0]
        elif operation == 0x06:
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[operation]
            at += if_true if holds else if_false


def verdict(machine: str, name: str, *, processes: bool, argument: int = 0) -> int:
    number = NUMBERS[name][list(MACHINES).index(machine)]
    program = seccomp.program(machine, processes=processes)
    return decide(program, architecture=MACHINES[machine], number=number, argument=argument)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_code_may_do(machine):
    for name in ("read", "write", "openat", "mmap", "exit_group", "futex", "getrandom", "landlock_restrict_self"):
        assert verdict(machine, name, processes=False) == ALLOW
        assert verdict(machine, name, processes=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("processes", [False, True])
def test_what_nobody_may_do(machine, processes):
    for name in ("socket", "ptrace", "mount", "bpf", "unshare", "setns", "process_vm_readv", "io_uring_setup", "keyctl"):
        assert verdict(machine, name, processes=processes) == EPERM
    for name in ("clone3", "fchmodat2"):
        assert verdict(machine, name, processes=processes) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_only_a_shell_starts_programs_and_only_without_namespaces(machine):
    for name in ("execve", "clone", "fchmodat", "sched_setaffinity"):
        assert verdict(machine, name, processes=False) == EPERM
        assert verdict(machine, name, processes=True) == ALLOW
    for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        assert verdict(machine, "clone", processes=True, argument=flag | 17) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("processes", [False, True])
def test_limits_of_other_processes_are_out_of_reach(machine, processes):
    assert verdict(machine, "prlimit64", processes=processes, argument=0) == ALLOW
    assert verdict(machine, "prlimit64", processes=processes, argument=1) == EPERM


@pytest.mark.parametrize("processes", [False, True])
def test_other_calling_conventions_are_refused(processes):
    program = seccomp.program("x86_64", processes=processes)
    assert decide(program, architecture=0x40000003, number=0) == KILL
    assert decide(program, architecture=MACHINES["aarch64"], number=63) == KILL
    assert decide(program, architecture=MACHINES["x86_64"], number=0x40000000) == ENOSYS
