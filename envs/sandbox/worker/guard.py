"""The guard of one session: trusted code between the owner and the interpreter, one call at a time."""

from __future__ import annotations

import os
from typing import Any

from envs.sandbox import wire
from envs.sandbox.worker import kernel, shell
from envs.sandbox.worker.child import InterpreterProcess, OwnerGone
from envs.sandbox.worker.jail import Jail, Limits
from envs.sandbox.worker.reply import Reply


def serve(channel: int, jail: Jail) -> None:
    """Serve a session until its owner closes it, or its interpreter is lost."""
    kernel.set_dumpable(False)
    opening = wire.receive(channel)
    if opening is None:
        return
    limits = Limits(**opening["limits"])
    try:
        jail.furnish(limits, opening["files"])
        interpreter = InterpreterProcess(jail, limits, script=opening["script"], seed=opening["seed"], channel=channel)
        _answer_calls(channel, jail, limits, interpreter)
    finally:
        jail.clear()


def _answer_calls(channel: int, jail: Jail, limits: Limits, interpreter: InterpreterProcess) -> None:
    try:
        wire.send(channel, {})  # ready
        while (request := wire.receive(channel)) is not None:
            reply = _answer(request, channel, jail, limits, interpreter)
            wire.send(channel, reply.message())
            if reply.lost:
                break
    except OwnerGone:
        pass
    finally:
        interpreter.kill()


def _answer(request: dict[str, Any], channel: int, jail: Jail, limits: Limits, interpreter: InterpreterProcess) -> Reply:
    if request["tool"] == "shell":
        return shell.run(request["text"], jail, limits, channel)
    return interpreter.call(request["tool"], request["text"])


def close_all_but(channel: int) -> None:
    """Let go of everything that the zygote had open; a session holds its own channel alone."""
    os.closerange(3, channel)
    os.closerange(channel + 1, 2**30)
