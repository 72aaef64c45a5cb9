"""`Play`: a person in the place of the model, for one episode in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from actors.episode import Scorer
from cacherl.trajectory import Message
from envs.agents import OracleAgent
from envs.answer import ANSWER_TAG, render_answer
from envs.base import EnvStep, Task, TaskSource
from envs.shorthand import describe_arguments, read_shorthand

_HELP = """\
[bold]tool key=value ...[/bold]  call a tool; values alone fill its arguments in order
[bold]/answer TEXT[/bold]        the final answer, which ends the episode
[bold]/hint[/bold]               what the solution does next
[bold]/tools /help /quit[/bold]; a turn as a model would write it (env.action_format) works, too"""


@dataclass(slots=True, kw_only=True)
class Play:
    """One episode at the keyboard.

    Attributes:
        read: the next line that was typed; None: there are no more.
        max_turns: turns after which the episode is cut off.
    """

    source: TaskSource
    scorer: Scorer
    console: Console
    read: Callable[[], str | None]
    max_turns: int
    _history: list[Message] = field(default_factory=list)
    _rewards: dict[str, float] = field(default_factory=dict)

    async def run(self, task: Task, *, rollout_seed: int) -> float:
        """Play until the answer, the last turn, or the end of the input; returns the verdict."""
        env = self.source.make_env()
        self._say(f"[bold]{task.task_id}[/bold]")
        for message in task.messages:
            self._plain(f"{message.role}: {message.content}")
        self._tools()
        self._say(_HELP)
        try:
            await env.reset(task, rollout_seed=rollout_seed)
            outcome = None
            for _ in range(self.max_turns):
                if outcome is not None or (text := self._turn(task)) is None:
                    break
                step = await env.step(text)
                self._show(text, step)
                outcome = step.outcome
            else:
                if outcome is None:
                    self._say(f"[yellow]cut off after {self.max_turns} turns (env.max_turns)[/yellow]")
            verdict = env.verdict() if outcome is None else outcome
        finally:
            await env.close()
        self._conclude(verdict)
        return verdict

    def _turn(self, task: Task) -> str | None:
        """The text of the next turn; None: the person has left."""
        while (line := self.read()) is not None:
            command, _, rest = line.strip().partition(" ")
            match command:
                case "":
                    continue
                case "/quit":
                    return None
                case "/tools":
                    self._tools()
                case "/help":
                    self._say(_HELP)
                case "/hint":
                    self._plain(OracleAgent(self.source).act(task, self._history))
                case "/answer":
                    return render_answer(rest)
                case _:
                    if text := self._call(line):
                        return text
        return None

    def _call(self, line: str) -> str | None:
        if ANSWER_TAG in line or self.source.format.parse(line, finish_reason="stop"):
            return line
        try:
            return self.source.format.render([read_shorthand(line, self.source.tools())])
        except ValueError as error:
            self._plain(f"{error} (/help)", style="red")
            return None

    def _show(self, text: str, step: EnvStep) -> None:
        self._history += [Message(role="assistant", content=text), *step.messages]
        self._plain(text, style="dim")
        for call, message in zip(step.calls, step.messages, strict=True):
            notes = [*call.tags, *(f"repaired: {repair}" for repair in call.repairs)]
            notes += [call.error] if call.error else []
            self._plain(
                f"{message.content}  ({', '.join(notes)})" if notes else message.content, style="" if call.ok else "red"
            )
        parts = self.scorer.turn(step.calls)
        self._book(parts)
        self._plain(f"reward {_parts(parts)}", style="cyan")

    def _conclude(self, verdict: float) -> None:
        parts = self.scorer.trajectory(verdict)
        self._book(parts)
        colour = "green" if verdict == 1.0 else "red"
        self._say(f"[bold {colour}]verdict {verdict:g}[/bold {colour}]")
        self._plain(f"return {sum(self._rewards.values()):+.2f} = {_parts(self._rewards)}", style="cyan")

    def _book(self, parts: Mapping[str, float]) -> None:
        for name, value in parts.items():
            self._rewards[name] = self._rewards.get(name, 0.0) + value

    def _tools(self) -> None:
        table = Table("tool", "arguments", "what it does")
        for spec in self.source.tools():
            table.add_row(spec.name, describe_arguments(spec), spec.description)
        self.console.print(table)

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def _plain(self, text: str, *, style: str = "") -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _parts(parts: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:+.2f}" for name, value in parts.items()) or "none"
