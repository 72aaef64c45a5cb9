"""Sessions of the sandbox: state, limits, reset, replacement, and that nothing outlives its owner."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from cacherl.environment_settings import SandboxSection
from cacherl.errors import ConfigError, EnvironmentFault
from envs.sandbox.sandbox import JAILS, BackendError, Sandbox, World, open_sandbox
from envs.sandbox.worker.reply import Reply

BACKENDS = (*JAILS, "rlimit")


def sandbox_or_skip(backend: str, **settings) -> Sandbox:
    try:
        return Sandbox(SandboxSection(**settings), backend=backend)
    except BackendError as error:
        pytest.skip(f"{backend}: {error}")


@pytest.fixture(scope="module", params=BACKENDS)
def sandbox(request):
    made = sandbox_or_skip(request.param, wall_s=20.0, cpu_s=5.0)
    yield made
    made.close()


def ok(text: str) -> Reply:
    return Reply(kind="ok", text=text)


async def test_variables_and_tables_last_as_long_as_the_session(sandbox):
    session = sandbox.session(World(script="CREATE TABLE t (n INTEGER)"))
    assert await session.run("python", "x = 20") == ok("")
    assert await session.run("sql", "INSERT INTO t VALUES (22), (NULL)") == ok("")
    assert await session.run("python", "y = db.execute('SELECT sum(n) FROM t').fetchone()[0]") == ok("")
    assert await session.run("python", "print(x + y)\nprint('done')") == ok("42\ndone")
    assert await session.run("sql", "SELECT n, 1.5, 'a' FROM t") == ok("22|1.5|a\n|1.5|a")
    session.close()
    assert (await session.run("python", "x")).text == "NameError: name 'x' is not defined, line 1"
    assert (await session.run("sql", "SELECT count(*) FROM t")).text == "0"
    session.close()


async def test_an_error_says_kind_message_and_line(sandbox):
    session = sandbox.session(World())
    for code, text in {
        "x = 1\nx / 0": "ZeroDivisionError: division by zero, line 2",
        "x = (": "SyntaxError: '(' was never closed, line 1",
        "def f():\n  raise KeyError('a')\nf()": "KeyError: 'a', line 2",
        "raise ValueError('long ' * 100)": f"ValueError: {'long ' * 39}long , line 1",
    }.items():
        assert await session.run("python", code) == Reply(kind="exception", text=text)
    missing = Reply(kind="exception", text="OperationalError: no such table: t")
    assert await session.run("sql", "SELECT * FROM t") == missing
    session.close()


async def test_siblings_share_nothing(sandbox):
    world = World(files={"a.csv": "n\n1\n"}, script="CREATE TABLE t (n INTEGER)", seed=3)
    first, second = sandbox.session(world), sandbox.session(world)
    await first.run("python", "import math, random, builtins, json\nmath.pi = 3; builtins.print = None; x = 1; json.a = 1")
    await first.run("sql", "DROP TABLE t")
    await first.run("python", "import os\ntry: os.unlink('a.csv')\nexcept OSError: pass")
    assert await second.run("python", "import math; print(math.pi, 'x' in globals(), open('a.csv').read())") == ok(
        "3.141592653589793 False n\n1\n"
    )
    assert await second.run("sql", "SELECT count(*) FROM t") == ok("0")
    first.close()
    second.close()


async def test_a_seed_fixes_what_python_draws_and_how_it_orders(sandbox):
    code = "import random; print(random.random(), {'a', 'b', 'c', 'd'})"
    other = sandbox_or_skip(sandbox.backend)
    drawn = []
    for source, seed in ((sandbox, 1), (other, 1), (sandbox, 2)):
        session = source.session(World(seed=seed))
        drawn.append(await session.run("python", code))
        session.close()
    other.close()
    assert drawn[0] == drawn[1] != drawn[2]


async def test_sessions_run_side_by_side(sandbox):
    sessions = [sandbox.session(World()) for _ in range(6)]
    await asyncio.gather(*(session.run("python", "import time") for session in sessions))
    began = time.monotonic()
    replies = await asyncio.gather(*(session.run("python", "time.sleep(1); print(1)") for session in sessions))
    assert time.monotonic() - began < 5
    assert replies == [ok("1")] * 6
    for session in sessions:
        session.close()


async def test_code_rests_between_calls(sandbox):
    """A timer of the code's own does not run on while the model thinks."""
    session = sandbox.session(World())
    code = (
        "import signal; n = 0\ndef f(*_):\n global n\n n += 1\nsignal.signal(signal.SIGALRM, f); signal.setitimer(0, .01, .01)"
    )
    assert await session.run("python", code) == ok("")
    await asyncio.sleep(0.5)
    reply = await session.run("python", "print(n)")
    assert int(reply.text) < 10
    session.close()


async def test_a_stale_answer_is_not_taken_for_the_next_call(sandbox):
    """Code that finds the mark of its own request may answer that one call as it likes, and no other."""
    session = sandbox.session(World())
    code = (
        "import os, sys, time\nframe = sys._getframe()\nwhile 'mark' not in frame.f_locals: frame = frame.f_back\n"
        "mark, answers = frame.f_locals['mark'], frame.f_back.f_locals['answers']\n"
        "from envs.sandbox.worker.interpreter import ANSWER\n"
        "os.write(answers, ANSWER.pack(mark, b'o', False, 6) + b'forged')"
    )
    first = await session.run("python", code)
    assert first.kind in ("ok", "protocol")
    if first.kind == "ok":
        assert first.text == "forged"
        assert (await session.run("python", "print('true')")).kind == "protocol"
    assert await session.run("python", "print('true')") == ok("true")
    session.close()


async def test_an_interpreter_that_does_not_read_is_given_up(sandbox):
    """Code that answers its own call and goes on cannot make the guard wait for it when the next, long call comes."""
    own = sandbox_or_skip(sandbox.backend, wall_s=1.0)
    session = own.session(World())
    code = (
        "import os, sys, time\nframe = sys._getframe()\nwhile 'answers' not in frame.f_locals: frame = frame.f_back\n"
        "mark, answers = frame.f_locals['request']['mark'].encode(), frame.f_locals['answers']\n"
        "from envs.sandbox.worker.interpreter import ANSWER\n"
        "os.write(answers, ANSWER.pack(mark, b'o', False, 0))\ntime.sleep(60)"
    )
    assert await session.run("python", code) == ok("")
    assert (await session.run("python", "#" * 10**6)).kind == "timeout"
    assert await session.run("python", "print('true')") == ok("true")
    session.close()
    own.close()


async def test_no_session_to_be_had_is_a_fault_of_the_environment_not_of_the_agent(sandbox, monkeypatch):
    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    session = sandbox.session(World())
    monkeypatch.setattr(session, "_connect", connect)
    with pytest.raises(EnvironmentFault, match="cannot begin a session"):
        await session.run("python", "1")
    monkeypatch.undo()
    assert await session.run("python", "print(1)") == ok("1")
    session.close()


def test_an_unknown_tool_is_refused(sandbox):
    with pytest.raises(ValueError, match="the sandbox has the tools python, sql, not 'shell'"):
        sandbox.session(World()).run_blocking("shell", "true")


@pytest.mark.parametrize(
    ("settings", "tool", "code", "kinds"),
    [
        ({"cpu_s": 0.2}, "python", "n = 0\nwhile n < 10 ** 7: n += 1", ("timeout", "ok")),
        ({"wall_s": 0.3}, "python", "import time; time.sleep(2)", ("timeout", "ok")),
        ({"memory_mb": 96}, "python", "x = bytearray(150 * 2 ** 20)", ("memory", "ok")),
        ({"file_mb": 1}, "python", "open('x', 'wb').write(b'x' * 2 ** 21)", ("exception", "ok")),
        ({"files": 8}, "python", "for n in range(20): open(str(n), 'w').close()", ("exception", "ok")),
        ({"descriptors": 16}, "python", "x = [open('x', 'a') for n in range(40)]", ("exception", "ok")),
        ({"processes": 2}, "shell", "for n in 1 2 3 4 5 6; do sleep 0.1 & done; wait", ("exception", "ok")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_each_limit_can_be_set(settings, tool, code, kinds):
    ample = {"cpu_s": 60.0, "wall_s": 60.0, "memory_mb": 400, "file_mb": 8, "files": 64, "descriptors": 64, "processes": 16}
    found = []
    for chosen in (settings, {}):
        sandbox = sandbox_or_skip("namespaces", **{**ample, **chosen}, shell=True)
        session = sandbox.session(World())
        found.append((await session.run(tool, code)).kind)
        session.close()
        sandbox.close()
    assert tuple(found) == kinds


async def test_output_bytes_are_counted_and_the_cut_is_reported():
    sandbox = sandbox_or_skip("namespaces", output_bytes=64, shell=True)
    session = sandbox.session(World(script="CREATE TABLE t (x TEXT); INSERT INTO t VALUES (hex(zeroblob(40)))"))
    for tool, text in (("python", "print('0' * 80)"), ("sql", "SELECT x FROM t"), ("shell", "printf %080d 0")):
        assert await session.run(tool, text) == Reply(kind="ok", text="0" * 64, truncated=True)
    session.close()
    sandbox.close()


def processes_below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


async def test_a_shell_leaves_no_process():
    sandbox = sandbox_or_skip("namespaces", shell=True, wall_s=1.0)
    session = sandbox.session(World())
    await session.run("python", "1")
    before = {process.pid for process in processes_below(os.getpid())}
    await session.run("shell", "setsid sleep 100 & (sleep 100 &) ; sleep 100 &")
    await session.run("shell", "(sleep 100 & sleep 100 & wait)")
    assert await gone(lambda: {process.pid for process in processes_below(os.getpid())} <= before)
    session.close()
    assert await gone(lambda: len(processes_below(os.getpid())) < len(before))
    sandbox.close()


async def gone(condition) -> bool:
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.05)
    return False


@pytest.mark.parametrize("depth", ["launcher", "zygote", "guard", "interpreter"])
async def test_the_death_of_any_process_is_survived(sandbox, depth, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = sandbox_or_skip(sandbox.backend)
    session, sibling = own.session(World()), own.session(World())
    mine = {process.pid for process in processes_below(os.getpid())}
    await session.run("python", "x = 1")
    chain = sorted(
        (process for process in processes_below(os.getpid()) if is_of(own, process)), key=lambda process: process.pid
    )
    dying = chain[("launcher", "zygote", "guard", "interpreter").index(depth) :]
    assert len(chain) == 4
    dying[0].send_signal(signal.SIGKILL)
    assert await gone(lambda: not any(alive(process) for process in dying))
    assert (await session.run("python", "print(x)")).kind == "crash"
    assert await session.run("python", "print(42)") == ok("42")
    assert await sibling.run("python", "print(42)") == ok("42")
    session.close()
    sibling.close()
    own.close()
    assert await gone(lambda: {process.pid for process in processes_below(os.getpid())} <= mine)
    assert list(tmp_path.iterdir()) == []


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_of(sandbox: Sandbox, process: psutil.Process) -> bool:
    return sandbox.worker_pid in (process.pid, *(parent.pid for parent in process.parents()))


OWNER = """
import asyncio, os, sys, time
from cacherl.environment_settings import SandboxSection
from envs.sandbox.sandbox import Sandbox, World
sandbox = Sandbox(SandboxSection(wall_s=100, cpu_s=100), backend=sys.argv[1])
async def main():
    sessions = [sandbox.session(World(files={"a.csv": "1"})) for _ in range(3)]
    await sessions[0].run("python", "x = 1")
    codes = ("x", "while True: pass", "import time; time.sleep(99)")
    tasks = [asyncio.create_task(session.run("python", code)) for session, code in zip(sessions, codes)]
    await asyncio.sleep(1)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_nothing_outlives_the_owner(backend, sig, tmp_path):
    sandbox_or_skip(backend).close()
    owner = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", OWNER, backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with owner, owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        assert bool(list(tmp_path.iterdir())) == (backend != "namespaces")
        left = processes_below(owner.pid)
        assert len(left) >= 8
        owner.send_signal(sig)
        owner.wait(20)
        assert await gone(lambda: not any(alive(process) for process in left))
    assert await gone(lambda: list(tmp_path.iterdir()) == [])


def in_a_poor_machine(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python where no user namespace can be made any more."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.stderr.startswith(("unshare:", "sh:")):
        pytest.skip(done.stderr)
    return done


def opening(**settings) -> str:
    return (
        "from cacherl.environment_settings import SandboxSection; from envs.sandbox.sandbox import open_sandbox\n"
        f"print(open_sandbox(SandboxSection(**{settings!r})).backend)"
    )


def test_auto_takes_the_strongest_that_works():
    sandbox_or_skip("landlock").close()
    assert in_a_poor_machine(opening()).stdout == "landlock\n"
    assert open_sandbox(SandboxSection()).backend == "namespaces"


def test_a_backend_that_does_not_work_is_refused_with_its_reason():
    error = in_a_poor_machine(opening(backend="namespaces")).stderr
    assert "ConfigError: env.sandbox.backend 'namespaces' does not work on this machine (namespaces: " in error
    assert "No space left on device" in error
    assert "env.sandbox.backend=rlimit" in error


@pytest.mark.parametrize("backend", ["landlock", "rlimit"])
def test_a_shell_needs_namespaces(backend):
    with pytest.raises(ConfigError, match=r"cannot hold a shell.*env\.sandbox\.shell"):
        open_sandbox(SandboxSection(backend=backend, shell=True))


def test_the_missing_jail_is_never_chosen_silently(caplog):
    assert open_sandbox(SandboxSection(backend="rlimit")).backend == "rlimit"
    assert "without a jail" in caplog.text
    assert "rlimit" not in JAILS
