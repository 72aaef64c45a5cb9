"""Linux calls that the standard library lacks: namespaces, mounts, capabilities, process control.

Every function raises `OSError` when the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
)  # fmt: skip

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITY_VERSION = 0x20080522

#: Number of a system call on machine -> name. Calls that are newer than 2011 have one number everywhere.
_NUMBERS = {"x86_64": {"pivot_root": 155, "capset": 126}, "aarch64": {"pivot_root": 41, "capset": 91}}
_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """The processor architecture.

    Raises:
        OSError: it is not one whose system calls are known here.
    """
    name = platform.machine()
    if name not in _NUMBERS:
        raise OSError(f"the jail knows the system calls of {' and '.join(_NUMBERS)}, not of {name}")
    return name


def syscall(number: int, *arguments: object) -> int:
    """A raw system call; integers and ctypes pointers as arguments."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *converted), f"system call {number}")


def control(option: int, first: int, second: int = 0) -> None:
    """prctl(2)."""
    arguments = (ctypes.c_ulong(first), ctypes.c_ulong(second), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _checked(_libc.prctl(option, *arguments), f"prctl {option}")


def unshare(flags: int) -> None:
    """Move this process (children, for NEWPID) into new namespaces."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` on `target`."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(result, f"mount on {target}")


def restrict_mount(path: str, attributes: int) -> None:
    """Set mount attributes on the mount at `path` and on everything below it (Linux 5.12)."""
    attr = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    syscall(_MOUNT_SETATTR, _AT_FDCWD, ctypes.c_char_p(path.encode()), _AT_RECURSIVE, attr, ctypes.sizeof(attr))


def enter_root(path: str) -> None:
    """Make the mount at `path` the root and let go of the old one."""
    os.chdir(path)
    dot = ctypes.c_char_p(b".")
    syscall(_NUMBERS[machine()]["pivot_root"], dot, dot)
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up all capabilities, also for programs that this process starts."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    syscall(_NUMBERS[machine()]["capset"], header, (ctypes.c_uint32 * 6)())


def forbid_new_privileges() -> None:
    """No program that this process starts gains rights; seccomp and Landlock require it."""
    control(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(value: bool) -> None:
    """Whether processes of the same user may look into this one."""
    control(_PR_SET_DUMPABLE, int(value))


def die_with_parent(parent: int, sig: int = signal.SIGKILL) -> None:
    """Receive `sig` when the parent's forking thread ends; `parent` 0 is a parent outside of this pid namespace."""
    control(_PR_SET_PDEATHSIG, int(sig))
    if os.getppid() != parent:
        os._exit(1)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
