"""The 'namespaces' jail: own users, processes, network, mounts and IPC; a read-only root with the standard library alone.

    launcher   in the host's pid namespace, waits
    └ zygote   pid 1 of the sandbox: builds the root, forks sessions
      └ guard  pid 1 of one session, in namespaces of its own, user 65534; a private, bounded /tmp
        └ interpreter, and shells in a further pid namespace for each call

When a pid 1 ends, the kernel ends everything in its namespace: nothing survives a session, or the sandbox.
"""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from envs.sandbox.worker import kernel, seccomp
from envs.sandbox.worker.jail import LIBRARIES, Limits, set_limits, standard_library, write_files

_NOBODY = 65534
_PROGRAMS = ("/bin", "/usr/bin")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_OTHERS = kernel.NEWNS | kernel.NEWIPC | kernel.NEWPID | kernel.NEWUSER
#: Processes of a session besides those of a shell: guard, interpreter, the shell's parent.
_OWN_PROCESSES = 3


class NamespaceJail:
    """See the module. With `shell`, programs of the host are there to be executed."""

    def __init__(self, *, shell: bool) -> None:
        self._shell = shell
        self._root_maps = os.getuid() == 0

    def spawn(self) -> int:
        kernel.machine()
        self._unshare()
        # Kept from before the root changes: a fresh procfs may not be mounted in every container.
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        child = os.fork()
        if child == 0:
            kernel.die_with_parent(0)
        return child

    def _unshare(self) -> None:
        """Enter new namespaces. The map of users is written from outside, where a root user has the right to map two."""
        own, gid = os.getpid(), os.getgid()
        user = os.getuid()
        ready_read, ready_write = os.pipe()
        writer = os.fork()
        if writer == 0:
            os.close(ready_write)
            os._exit(self._write_maps(own, user, gid, ready_read))
        try:
            kernel.unshare(_OTHERS | kernel.NEWNET | kernel.NEWUTS | kernel.NEWCGROUP)
            os.write(ready_write, b"!")
        finally:
            os.close(ready_write)
            os.close(ready_read)
            status = os.waitpid(writer, 0)[1]
        if status != 0:
            raise OSError("the map of users was refused")

    def _write_maps(self, pid: int, user: int, group: int, ready: int) -> int:
        if os.read(ready, 1) != b"!":
            return 0
        try:
            folder = Path(f"/proc/{pid}")
            if not self._root_maps:
                (folder / "setgroups").write_text("deny")
            nobody = f"\n{_NOBODY} {_NOBODY} 1" if self._root_maps else ""
            (folder / "uid_map").write_text(f"0 {user} 1{nobody}\n")
            (folder / "gid_map").write_text(f"0 {group} 1{nobody}\n")
        except OSError:
            return 1
        return 0

    def build(self) -> None:
        sources = _visible(self._shell)
        opened = {path: os.open(path, os.O_PATH) for path in sources}
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        root = tempfile.gettempdir()
        kernel.mount("sandbox", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
        for path, descriptor in opened.items():
            _show(root, path, descriptor)
            os.close(descriptor)
        packages = Path(root + standard_library()) / "site-packages"
        if packages.is_dir():
            kernel.mount("none", str(packages), "tmpfs", options="size=4k,mode=555")
        Path(root, "tmp").mkdir()
        kernel.enter_root(root)
        kernel.restrict_mount("/", kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)

    def fork(self) -> bool:
        if os.fork():
            return False
        try:
            self._enter_session()
            guard = os.fork() == 0
        except OSError:
            os._exit(1)
        if not guard:
            os._exit(0)
        return True

    def _enter_session(self) -> None:
        """New namespaces for this process's children, as user 65534, who is the owner's user or, for root, nobody."""
        if self._root_maps:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            kernel.set_dumpable(True)  # or /proc/self would belong to root
        outer = os.getuid()
        kernel.unshare(_OTHERS)
        self._write_proc("setgroups", "deny")
        self._write_proc("uid_map", f"{_NOBODY} {outer} 1\n")
        self._write_proc("gid_map", f"{_NOBODY} {outer} 1\n")
        self._write_proc("oom_score_adj", "1000")

    def _write_proc(self, name: str, text: str) -> None:
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=self._proc)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def furnish(self, limits: Limits, files: Mapping[str, str]) -> None:
        size = limits.files * limits.file_mb
        options = f"size={size}m,nr_inodes={limits.files + 1},mode=700"
        kernel.mount("none", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        os.chdir("/tmp")
        write_files(Path("/tmp"), files)

    def confine(self, limits: Limits, *, processes: bool) -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL if processes else signal.SIG_IGN)
        count = limits.processes + _OWN_PROCESSES
        resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
        set_limits(limits)
        kernel.forbid_new_privileges()
        kernel.drop_capabilities()
        seccomp.install(processes=processes)

    def clear(self) -> None:
        """The folder goes with its namespace."""

    def release(self) -> None:
        """Everything went with its namespace."""


def _visible(shell: bool) -> list[str]:
    """Host paths that exist in the jail too, folders before what they hold."""
    wanted = [*LIBRARIES, *(_PROGRAMS if shell else ()), standard_library(), "/etc/ld.so.cache", *_DEVICES]
    shown: list[str] = []
    for path in wanted:
        covered = any(Path(path).is_relative_to(other) for other in shown if not Path(other).is_symlink())
        if Path(path).exists() and not covered:
            shown.append(path)
    return shown


def _show(root: str, path: str, descriptor: int) -> None:
    """Let `path` of the host appear under the new root: a link as a link, anything else as a read-only mount."""
    target = Path(root + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    link = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    if link != path and path in LIBRARIES + _PROGRAMS:
        target.symlink_to(link)
        return
    if Path(f"/proc/self/fd/{descriptor}").is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    kernel.mount(f"/proc/self/fd/{descriptor}", str(target), flags=kernel.MS_BIND | kernel.MS_REC)
    attributes = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
    kernel.restrict_mount(str(target), attributes if path in _DEVICES else attributes | kernel.MOUNT_ATTR_NODEV)
