"""python, sql and shell on the tables of one question, and the verdict: the exact number, computed by a call.

The code runs in a sandbox session; the verdict is made here, of the question, the programs and what they printed. A call has
computed the answer when it printed it among few words, and when the same calls print the other answer where the numbers are
others (`Question.other`): whoever prints everything, or a guess, however it is written, has found nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cacherl.errors import EnvironmentFault
from envs.base import ToolSpec
from envs.calllog import CallLog
from envs.code.names import ROWS
from envs.code.programs import solving_calls
from envs.code.question import Question
from envs.sandbox.session import Session
from envs.sandbox.worker.reply import CRASH, EXCEPTION, MEMORY, OK, PROTOCOL, TIMEOUT, Reply
from envs.simulator import FIRST, IRRELEVANT, NEEDED, ToolResult

RAN_TOO_LONG = "ran too long"
OUT_OF_MEMORY = "out of memory"
CRASHED = "crashed"
GONE = "variables are gone"
ERRORS = (RAN_TOO_LONG, OUT_OF_MEMORY, CRASHED, *(f"{error}, {GONE}" for error in (RAN_TOO_LONG, CRASHED)))
_TEXTS = {TIMEOUT: RAN_TOO_LONG, MEMORY: OUT_OF_MEMORY, CRASH: CRASHED, PROTOCOL: CRASHED}

#: Words of an output that may count as an answer: fewer than the numbers of a column.
_FEW_WORDS = ROWS - 1


def _spec(name: str, description: str, argument: str) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
            "additionalProperties": False,
        },
        read_only=False,
    )


TOOLS = (
    _spec(
        "python",
        "Run Python 3 code with the standard library and show what it prints. Variables stay. Every table is a file NAME.csv.",
        "code",
    ),
    _spec("sql", "Run one SQLite statement on the tables and show its rows.", "query"),
)
SHELL = _spec("shell", "Run a shell command in the folder of the files NAME.csv and show its output.", "command")


class CodeSimulator:
    """Serves one question.

    Args:
        open_session: begins a fresh sandbox session for a question; called again after a restore, and for the other question.
    """

    def __init__(self, question: Question, open_session: Callable[[Question], Session]) -> None:
        self._question = question
        self._open_session = open_session
        self._session: Session | None = None
        self._log = CallLog(needed=solving_calls(question))
        self._calls: list[list[str]] = []
        self._shown = False

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        text = next(iter(arguments.values()))
        reply = await (await self._ready()).run(name, text)
        self._calls = [] if reply.lost else [*self._calls, [name, text]]
        relevance, turn = self._log.record(name, arguments)
        if reply.kind != OK:
            kind = _kind(reply)
            return ToolResult(error=_explain(reply), kind=kind, tags=(IRRELEVANT, turn), lasting=kind == "tool")
        if turn == FIRST and not self._shown and await self._computes_answer(reply):
            self._shown, relevance = True, NEEDED
        content = {"output": reply.text} | ({"truncated": True} if reply.truncated else {})
        # To look around is neither needed nor irrelevant.
        return ToolResult(content=content, tags=(NEEDED, turn) if relevance == NEEDED else (turn,))

    async def _computes_answer(self, reply: Reply) -> bool:
        """Whether the call of this reply did; it is the last of `_calls`."""
        if not _shows(reply, self._question):
            return False
        other = self._question.other
        session = self._open_session(other)
        try:
            replies = [await session.run(name, text) for name, text in self._calls]
        finally:
            session.close()
        return _shows(replies[-1], other)

    async def _ready(self) -> Session:
        """The session, in which all calls since its beginning have been made."""
        if self._session is None:
            self._session = self._open_session(self._question)
            for name, text in self._calls:
                if (await self._session.run(name, text)).lost:
                    raise EnvironmentFault(f"a {name} call that ran before cannot be repeated in a new session")
        return self._session

    def answer(self, value: str | None) -> float:
        return float(value == str(self._question.answer) and self._shown)

    def verdict(self) -> float:
        return 0.0

    def state(self) -> dict[str, Any]:
        return {"done": self._log.state(), "calls": [list(call) for call in self._calls], "shown": self._shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._log.restore(state["done"])
        self._calls = [list(call) for call in state["calls"]]
        self._shown = state["shown"]
        if self._session is not None:
            self._session.close()
            self._session = None

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _shows(reply: Reply, question: Question) -> bool:
    printed = re.findall(r"\w+", reply.text) if reply.kind == OK else []
    return len(printed) <= _FEW_WORDS and str(question.answer) in printed


def _explain(reply: Reply) -> str:
    if reply.kind == EXCEPTION:
        return reply.text
    text = _TEXTS[reply.kind]
    return f"{text}, {GONE}" if reply.lost else text


def _kind(reply: Reply) -> str:
    """What went wrong, as `ToolCall.error` says it; 'timeout' there is the world's fault."""
    return {EXCEPTION: "tool", TIMEOUT: "overtime", PROTOCOL: CRASH}.get(reply.kind, reply.kind)
