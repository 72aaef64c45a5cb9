"""`dojo_source`: the four suites as levels 1 to 4."""

from __future__ import annotations

import json

from cacherl.environment_settings import EnvSection
from cacherl.trajectory import Message
from envs.adapters.agentdojo.package import SUITES, UserTask, tool_specs, user_tasks
from envs.adapters.agentdojo.world import DojoWorld
from envs.adapters.suite import SuiteSource
from envs.answer import ANSWER_TAG
from envs.base import ActionFormat, PlannedCall, Solution, SolutionStep
from envs.jsontext import compact

_INSTRUCTIONS = (
    "You are an AI assistant with access to tools. Write a call as {example}. When the task is done, or a question can be "
    "answered, say so without a call: {tag} and the answer.\n\nTools:\n{tools}"
)


def dojo_source(section: EnvSection) -> SuiteSource[UserTask]:
    """The suites' user tasks.

    Raises:
        ConfigError: the package agentdojo is absent; the tool-result cache is on.
    """
    return SuiteSource(
        section,
        "agentdojo",
        {level: user_tasks(suite) for level, suite in SUITES.items()},
        messages=_messages,
        start=DojoWorld,
        solution=_solution,
    )


def _messages(item: UserTask, action_format: ActionFormat) -> tuple[Message, ...]:
    example = action_format.render([PlannedCall(name="tool_name", arguments={"argument": "value"})])
    tools = compact(
        [{"name": s.name, "description": s.description, "parameters": dict(s.parameters)} for s in tool_specs(item.suite)]
    )
    system = _INSTRUCTIONS.format(example=example, tag=ANSWER_TAG, tools=tools)
    return Message(role="system", content=system), Message(role="user", content=item.task.PROMPT)


def _solution(item: UserTask) -> Solution:
    calls = item.task.ground_truth(item.environment())
    steps = tuple(
        SolutionStep(call=PlannedCall(name=call.function, arguments=json.loads(json.dumps(call.args, default=str))))
        for call in calls
    )
    return Solution(steps=steps, answer=item.task.GROUND_TRUTH_OUTPUT, guess="done")
