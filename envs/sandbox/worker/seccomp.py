"""Which system calls jailed code may make: a seccomp filter, assembled here.

The filter refuses what reaches beyond the process (network, other processes, mounts, keys, kernel interfaces) with EPERM, and
calls newer than the table with ENOSYS, so that a kernel upgrade opens nothing. Foreign architectures end the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from envs.sandbox.worker import kernel

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
#: Offsets in struct seccomp_data: number, architecture, low half of the first argument.
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

#: First number that is newer than the tables below.
_UNKNOWN = 451
#: Every CLONE_NEW* flag.
_NEW_NAMESPACES = 0x7E020080

#: Calls that are refused to all, as (x86_64, aarch64); -1: not there.
_REFUSED = {
    "socket": (41, 198), "socketpair": (53, 199), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "personality": (135, 92), "shmget": (29, 194),
    "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "fanotify_init": (300, 262), "inotify_init": (253, -1), "inotify_init1": (294, 26),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161),
    "setdomainname": (171, 162), "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58), "lookup_dcookie": (212, 18),
    "iopl": (172, -1), "ioperm": (173, -1), "modify_ldt": (154, -1), "uselib": (134, -1), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "mbind": (237, 235), "set_mempolicy": (238, 237),
}  # fmt: skip
#: Calls that code without processes has no use for, and that Landlock does not judge: other processes' priorities, owners and
#: modes and times of files.
_UNJUDGED = {
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "ioprio_set": (251, 30), "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53),
    "chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, -1),
    "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
#: Calls that make processes, threads and programs; clone3 hides its flags from a filter, and libc falls back to clone.
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_BEGIN_PROGRAMS = {"fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281)}


def install(*, processes: bool) -> None:
    """Confine this process and whatever it starts, for good. With `processes` it may fork and start programs.

    Raises:
        OSError: the kernel has no seccomp, or the processor is unknown.
    """
    code = program(kernel.machine(), processes=processes)
    buffer = ctypes.create_string_buffer(code)
    length = len(code) // 8

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    reference = Program(length, ctypes.addressof(buffer))
    kernel.control(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(reference))


def program(machine: str, *, processes: bool) -> bytes:
    """The filter as machine code of the kernel's packet filter, 8 bytes an instruction."""
    column = _COLUMN[machine]
    deny = _return(_ERRNO | errno.EPERM)
    code = [_do(_LOAD, _ARCHITECTURE), _do(_EQUAL, _ARCHITECTURES[machine], 1, 0), _return(_KILL), _do(_LOAD, _NUMBER)]
    code += [_do(_AT_LEAST, _UNKNOWN, 0, 1), _return(_ERRNO | errno.ENOSYS)]
    code += [_do(_EQUAL, _CLONE3[column], 0, 1), _return(_ERRNO | errno.ENOSYS)]
    refused = dict(_REFUSED) if processes else {**_REFUSED, **_UNJUDGED, **_BEGIN_PROGRAMS, "clone": _CLONE}
    for numbers in refused.values():
        if numbers[column] >= 0:
            code += [_do(_EQUAL, numbers[column], 0, 1), deny]
    if processes:
        code += [_do(_EQUAL, _CLONE[column], 0, 4), _do(_LOAD, _ARGUMENT), _do(_ANY_BIT, _NEW_NAMESPACES, 0, 1), deny]
        code += [_return(_ALLOW)]
    code += [_do(_EQUAL, _PRLIMIT[column], 0, 3), _do(_LOAD, _ARGUMENT), _do(_EQUAL, 0, 1, 0), deny]
    return b"".join([*code, _return(_ALLOW)])


def _do(operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, operand)


def _return(action: int) -> bytes:
    return _do(_RETURN, action)
