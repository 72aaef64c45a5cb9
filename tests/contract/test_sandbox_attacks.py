"""Every attack on the sandbox fails, in every jail that works here; the session goes on and siblings feel nothing."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cacherl.environment_settings import SandboxSection
from envs.sandbox.sandbox import JAILS, BackendError, Sandbox, World
from envs.sandbox.worker.interpreter import ANSWER
from envs.sandbox.worker.reply import Reply

SECRET = "cacherl-secret-51966"
LIMITS = {"cpu_s": 0.25, "wall_s": 1.0, "memory_mb": 128, "output_bytes": 500, "files": 8, "processes": 8}


@pytest.fixture(scope="module")
def sandbox(request):
    os.environ["CACHERL_SANDBOX_SECRET"] = SECRET
    try:
        made = Sandbox(SandboxSection(**LIMITS, shell=request.param == "namespaces"), backend=request.param)
    except BackendError as error:
        pytest.skip(f"{request.param}: {error}")
    finally:
        del os.environ["CACHERL_SANDBOX_SECRET"]
    yield made
    made.close()


def test_this_machine_has_a_jail_at_all():
    """Without one the tests below prove nothing."""
    problems = []
    for backend in JAILS:
        try:
            Sandbox(SandboxSection(), backend=backend).close()
        except BackendError as error:
            problems.append(f"{backend}: {error}")
    assert len(problems) < len(JAILS), problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A program, how it must end, and a word of the text that it ends with. `only`: the jail that it is meant for."""

    name: str
    code: str
    kinds: tuple[str, ...]
    text: str = ""
    tool: str = "python"
    only: str | None = None


#: Tries every way in turn and prints those that worked.
_TRY = """
def reach(*attempts):
    for number, attempt in enumerate(attempts):
        try:
            result = attempt()
        except (OSError, RuntimeError, LookupError, ValueError, ImportError):
            continue
        print('REACHED', number, result)
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno())
"""


def nothing(name: str, *attempts: str, only: str | None = None) -> Attack:
    """None of the expressions may work."""
    code = _TRY + "reach(" + ", ".join(f"lambda: {attempt}" for attempt in attempts) + ")"
    return Attack(name=name, code=code, kinds=("ok",), only=only)


#: Writes to every descriptor that it has.
_WRITE = """
import os, time
for n in range(3, 32):
    try:
        os.write(n, {data!r})
    except OSError:
        pass
time.sleep({seconds})
"""


def noise(name: str, data: bytes, *kinds: str, seconds: int = 0) -> Attack:
    """A program that writes `data` into the pipes of the protocol, and whose reply is one of `kinds`."""
    return Attack(name=name, code=_WRITE.replace("{data!r}", repr(data)).replace("{seconds}", str(seconds)), kinds=kinds)


PYTHON = [
    Attack(name="infinite loop", code="while True: pass", kinds=("timeout",)),
    Attack(
        name="loop that catches",
        code="while True:\n try:\n  while True: pass\n except BaseException: pass",
        kinds=("timeout",),
    ),
    Attack(name="long sleep", code="import time; time.sleep(60)", kinds=("timeout",)),
    Attack(name="loop in C", code="10 ** 10 ** 8", kinds=("timeout", "memory")),
    Attack(name="catastrophic pattern", code="import re; re.match('(a+)+b', 'a' * 60)", kinds=("timeout",)),
    Attack(
        name="loop while the error is shown",
        code="class E(Exception):\n def __str__(self):\n  while True: pass\nraise E",
        kinds=("timeout",),
    ),
    Attack(name="1 GB", code="x = 'x' * 10 ** 9", kinds=("memory",)),
    Attack(name="growing list", code="x = []\nwhile True: x.append(bytearray(10 ** 6))", kinds=("memory",)),
    Attack(name="anonymous map", code="import mmap; x = [mmap.mmap(-1, 2 ** 28)]", kinds=("exception", "memory")),
    Attack(name="10 MB of output", code="print('x' * 10 ** 7)", kinds=("ok",), text="x" * 500),
    Attack(name="endless output", code="while True: print('x' * 1000)", kinds=("timeout",)),
    Attack(name="output of long characters", code="print('\\U0001F600' * 10 ** 5)", kinds=("ok",), text="\U0001f600" * 125),
    Attack(name="half characters", code="print('\\ud800' * 5)", kinds=("ok",), text="?????"),
    Attack(name="exit", code="import os; os._exit(0)", kinds=("crash",)),
    Attack(name="system exit", code="raise SystemExit", kinds=("exception",), text="SystemExit"),
    Attack(name="abort", code="import os; os.abort()", kinds=("crash",)),
    Attack(name="wild pointer", code="import ctypes; ctypes.string_at(1)", kinds=("crash",)),
    Attack(name="own death", code="import os; os.kill(os.getpid(), 9)", kinds=("crash",)),
    Attack(name="deep nesting", code="(" * 5000 + ")" * 5000, kinds=("exception", "memory", "crash")),
    Attack(name="endless recursion", code="def f(): f()\nf()", kinds=("exception",), text="RecursionError"),
    Attack(name="reading input", code="input()", kinds=("exception",), text="EOFError"),
    noise("noise on the pipe", b"\xff" * 64, "protocol"),
    noise("a forged answer", ANSWER.pack(b"00000000", b"o", False, 6) + b"forged", "protocol"),
    noise("half a forged answer", b"0000", "timeout", seconds=60),
    noise("an answer that never ends", ANSWER.pack(b"00000000", b"o", False, 2**32 - 1), "protocol"),
    Attack(name="closed pipes", code="import os; os.closerange(0, 99)", kinds=("crash", "protocol")),
    nothing(
        "processes",
        "os.fork()",
        "os.posix_spawn('/bin/true', ['x'], {})",
        "__import__('subprocess').run(['/bin/true'])",
        "os.execv('/bin/true', ['x'])",
        "call(57)",
        "call(58)",
        "call(435, 0, 0)",
        "__import__('_thread').start_new_thread(print, ())",
        "__import__('multiprocessing').Process(target=print).start()",
    ),
    nothing(
        "network",
        "__import__('socket').socket()",
        "__import__('socket').create_connection(('127.0.0.1', {port}))",
        "__import__('urllib.request').request.urlopen('http://127.0.0.1:{port}', None, 1)",
        "__import__('socket').create_connection(('192.0.2.1', 80), 1)",
        "call(41, 2, 1, 0)",
        "call(41, 16, 3, 0)",
        "call(53, 1, 1, 0, ctypes.create_string_buffer(8))",
        "__import__('socket').socketpair()",
    ),
    nothing(
        "host files",
        "open('{secret}').read()",
        "open('/etc/passwd').read()",
        "open('/etc/hostname').read()",
        "os.listdir('/home')",
        "os.listdir('/proc')",
        "os.listdir('/sys')",
        "open('/proc/1/environ').read()",
        "open('/proc/self/environ').read()",
        "open('/proc/self/mem', 'rb').read(1)",
        "os.listdir('/dev/shm')",
        "open('../' * 20 + '{secret}').read()",
        "open('/proc/self/root{secret}').read()",
        "open('{source}').read()",
        "open('/dev/kmsg').read()",
    ),
    nothing(
        "symlinks",
        "(os.symlink('{secret}', 'link'), open('link').read())",
        "(os.link('{secret}', 'hard'), open('hard').read())",
        "(os.symlink('/', 'top'), open('top{secret}').read())",
        "os.rename('{secret}', 'mine')",
    ),
    nothing(
        "writing to the host",
        "open('/etc/cacherl', 'w')",
        "open('/usr/lib/cacherl', 'w')",
        "os.mkdir('/cacherl')",
        "open('{secret}', 'a')",
        "os.unlink('{secret}')",
        "os.chmod('{secret}', 0)",
        "os.utime('{secret}')",
        "os.truncate('{secret}', 0)",
        "os.mknod('/dev/mem2')",
    ),
    nothing(
        "environment",
        "str(dict(os.environ)).index('{word}')",
        "ctypes.CDLL(None).getenv(b'CACHERL_SANDBOX_SECRET') or int('unset')",
    ),
    nothing(
        "signals",
        "os.kill(os.getppid(), 0) if os.getppid() > 1 else call(424, 1, 9, 0, 0)",
        "os.kill({owner}, 0)",
        "os.killpg(os.getpgid({owner}), 0)",
        "call(424, 3, 9, 0, 0)",
    ),
    nothing(
        "other processes",
        "call(101, 16, {owner}, 0, 0)",
        "call(101, 16, os.getppid(), 0, 0)",
        "call(310, os.getppid(), 0, 0, 0, 0, 0)",
        "call(434, os.getppid(), 0)",
        "os.sched_setaffinity(os.getppid(), [0])",
        "os.setpriority(0, os.getppid(), 19)",
        "__import__('resource').prlimit(os.getppid(), 0, (1, 1))",
        "__import__('resource').prlimit({owner}, 0, (1, 1))",
    ),
    nothing(
        "more rights",
        "os.setuid(0) if os.getuid() else call(165, b'none', b'/', b'tmpfs', 0, b'')",
        "os.chroot('.')",
        "call(272, 0x10000000)",
        "call(308, 0, 0)",
        "call(165, b'none', b'/tmp', b'tmpfs', 0, b'')",
        "call(170, b'x', 1)",
        "call(321, 0, 0, 0)",
        "call(425, 8, 0)",
        "call(319, b'x', 0)",
        "call(169, 0, 0, 0, 0)",
        "call(29, 0, 4096, 0o666)",
        "call(250, 0, 0, 0)",
        "call(298, 0, 0, 0, 0, 0)",
        "call(323, 0)",
        "call(451, 0, 0, 0, 0)",
        "call(0x40000000 + 41, 2, 1, 0)",
        "__import__('resource').setrlimit(9, (2 ** 40, 2 ** 40))",
        "__import__('resource').setrlimit(7, (999, 999))",
    ),
    nothing("the project and its packages", "__import__('numpy')", "__import__('cacherl')", "__import__('pydantic')"),
]

SQL = [
    Attack(name="endless query", tool="sql", kinds=("timeout",), code=(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n")),
    Attack(name="endless rows", tool="sql", kinds=("ok",), text="1\n2\n3", code=(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n")),
    Attack(name="a huge blob", tool="sql", kinds=("memory", "exception"), code="SELECT length(randomblob(900000000))"),
    Attack(name="another file", tool="sql", kinds=("exception",), text="unable to open", code="ATTACH '{secret}' AS x"),
    Attack(name="an extension", tool="sql", kinds=("exception",), text="not authorized", code="SELECT load_extension('x')"),
    Attack(name="two statements", tool="sql", kinds=("exception",), text="one statement", code="SELECT 1; SELECT 2"),
]  # fmt: skip

FILES = [
    Attack(name="50 MB file", kinds=("exception",), text="OSError", only="namespaces", code=(
        "f = open('big', 'wb')\nfor _ in range(50): f.write(b'x' * 10 ** 6); f.flush()")),
    Attack(name="many files", kinds=("exception",), text="No space left", only="namespaces", code=(
        "for n in range(1000): open(f'f{n}', 'w').close()")),
    Attack(name="many open files", kinds=("exception",), text="Too many open files", code=(
        "x = [open('a.csv') for n in range(1000)]")),
    Attack(name="any file", kinds=("exception",), text="Permission denied", only="landlock", code="open('x', 'w')"),
]  # fmt: skip

SHELL = [
    Attack(name="fork bomb", code="bomb() { bomb | bomb & }; bomb; sleep 60", kinds=("timeout", "exception", "crash")),
    Attack(name="left behind", code="setsid sleep 61 & (nohup sleep 62 &) ; echo gone", kinds=("ok",), text="gone"),
    Attack(name="orphan that lets go", code="exec >&- 2>&-; sleep 63", kinds=("timeout",)),
    Attack(name="endless shell output", code="yes", kinds=("timeout",)),
    Attack(name="busy shell", code="while :; do :; done", kinds=("timeout", "crash")),
    Attack(name="killing everybody", code="kill -9 -1; kill -9 1; echo alive", kinds=("ok",), text="alive"),
    Attack(name="shell writes 50 MB", code="head -c 50000000 /dev/zero > big", kinds=("exception", "crash")),
    Attack(name="shell takes memory", code="head -c 900000000 /dev/zero | tail", kinds=("ok", "exception"), text="exhausted"),
    Attack(name="shell reads the host", code="cat {secret} /etc/passwd /proc/1/environ", kinds=("exception",), text="No such"),
    Attack(name="shell network", code="bash -c 'echo > /dev/tcp/127.0.0.1/{port}'", kinds=("exception",)),
    Attack(name="shell namespaces", code="unshare -r true", kinds=("exception",)),
    Attack(name="shell mounts", code="mount -t tmpfs none /tmp", kinds=("exception",)),
    Attack(name="shell raises limits", code="ulimit -n 9999", kinds=("exception",)),
    Attack(name="shell environment", code="env; exit 3", kinds=("exception",), text="exit status 3"),
]  # fmt: skip
ATTACKS = [*PYTHON, *SQL, *FILES, *(replace(attack, tool="shell", only="namespaces") for attack in SHELL)]
CASES = [
    pytest.param(backend, attack, id=f"{backend}-{attack.name.replace(' ', '-')}")
    for backend in JAILS
    for attack in ATTACKS
    if attack.only in (None, backend)
]


@pytest.fixture
def listener():
    """A server of the host that no jailed code may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def program(attack: Attack, secret: Path, listener: socket.socket) -> str:
    """The attack's code with the targets of this test."""
    code = attack.code
    for name, value in {
        "secret": secret, "port": listener.getsockname()[1], "owner": os.getpid(), "word": SECRET, "source": __file__,
    }.items():  # fmt: skip
        code = code.replace("{" + name + "}", str(value))
    return code


@pytest.mark.parametrize("name", ["network", "host files", "signals"])
async def test_the_same_programs_reach_their_target_without_a_jail(name, tmp_path, listener):
    """So it is the jail that holds them in the test below, not a mistake in them. Only those that do no harm."""
    bare = Sandbox(SandboxSection(wall_s=20.0), backend="rlimit")
    (attack,) = [attack for attack in PYTHON if attack.name == name]
    (tmp_path / "secret").write_text(SECRET)
    session = bare.session(World())
    reply = await session.run("python", program(attack, tmp_path / "secret", listener))
    assert "REACHED 0" in reply.text
    session.close()
    bare.close()


@pytest.mark.parametrize(("sandbox", "attack"), CASES, indirect=["sandbox"])
async def test_an_attack_fails_and_the_session_goes_on(sandbox, attack, tmp_path, listener):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    world = World(files={"a.csv": "n\n1\n"}, script="CREATE TABLE a (n INTEGER); INSERT INTO a VALUES (7)")
    session, sibling = sandbox.session(world), sandbox.session(world)
    assert (await sibling.run("python", "kept = 5")).kind == "ok"

    reply = await session.run(attack.tool, program(attack, secret, listener))

    assert reply.kind in attack.kinds, reply
    assert SECRET not in reply.text
    assert len(reply.text.encode()) <= LIMITS["output_bytes"]
    if attack.text:
        assert attack.text in reply.text
    elif reply.kind == "ok":
        assert reply.text == ""
    assert secret.read_text() == SECRET
    with pytest.raises(BlockingIOError):
        listener.accept()
    if reply.kind == "memory":
        await session.run("python", "x = None")
    assert await session.run("sql", "SELECT n FROM a") == Reply(kind="ok", text="7")
    if not reply.lost:
        assert (await session.run("python", "kept")).text.startswith("NameError")
    session.close()
    assert await sibling.run("python", "print(kept, open('a.csv').read().split())") == Reply(kind="ok", text="5 ['n', '1']")
    sibling.close()
