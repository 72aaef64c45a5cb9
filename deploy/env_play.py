"""`Play`: a person in the place of the model, for one episode in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.rollout import Scorer
from cacherl.trajectory import Message, Status, Trajectory, Turn
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
    _turns: list[Turn] = field(default_factory=list)

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
                self._show(task, text, step)
                outcome = step.outcome
            else:
                if outcome is None:
                    self._say(f"[yellow]cut off after {self.max_turns} turns (env.max_turns)[/yellow]")
            verdict = env.verdict() if outcome is None else outcome
        finally:
            await env.close()
        self._conclude(task, verdict)
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

    def _show(self, task: Task, text: str, step: EnvStep) -> None:
        self._history += [Message(role="assistant", content=text), *step.messages]
        self._plain(text, style="dim")
        for call, message in zip(step.calls, step.messages, strict=True):
            notes = [*call.tags, *(f"repaired: {repair}" for repair in call.repairs)]
            notes += [call.error] if call.error else []
            self._plain(
                f"{message.content}  ({', '.join(notes)})" if notes else message.content, style="" if call.ok else "red"
            )
        self._turns.append(
            Turn(
                completion=(0, 0),
                observation=(0, 0),
                text=text,
                calls=step.calls,
                messages=step.messages,
                state_hash=step.state_hash,
                potential=step.potential,
            )
        )
        self._plain(f"reward {_parts(self._scored(task, 0.0).turns[-1].rewards)}", style="cyan")

    def _conclude(self, task: Task, verdict: float) -> None:
        scored = self._scored(task, verdict)
        colour = "green" if verdict == 1.0 else "red"
        self._say(f"[bold {colour}]verdict {verdict:g}[/bold {colour}]")
        self._plain(f"return {scored.total_reward:+.2f} = {_parts(scored.reward_parts)}", style="cyan")

    def _scored(self, task: Task, outcome: float) -> Trajectory:
        """What has been played so far, as an episode of no tokens, with its rewards."""
        played = Trajectory(
            trajectory_id="play",
            task_id=task.task_id,
            family=task.family,
            level=task.level,
            split=task.split,
            token_ids=np.zeros(0, np.int32),
            loss_mask=np.zeros(0, np.bool_),
            rollout_logprobs=np.zeros(0, np.float32),
            policy_versions=np.zeros(0, np.int32),
            temperature=1.0,
            turns=tuple(self._turns),
            rewards={},
            outcome=outcome,
            status=Status(kind="terminated"),
            task_seed=task.seed,
            rollout_seed=0,
            prompt=task.messages,
        )
        return self.scorer.score([played], {})[0]

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
