"""Which components a config asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cacherl.config import RunConfig
from rewards.base import Component
from rewards.components import FinalOutcome, StepPenalty, ToolUse
from rewards.cost import ToolCost, declared, seconds
from rewards.format import CallFormat
from rewards.judge import Judge
from rewards.overlong import Overlong
from rewards.shaping import Shaping
from rewards.user import load_component
from rewards.utilization import ResultUtilization


def build_components(config: RunConfig, tool_costs: Mapping[str, float]) -> list[Component]:
    """The components whose weight is not 0.

    Args:
        tool_costs: tool -> declared cost of a call.

    Raises:
        ConfigError: a user's component or the judge cannot be made.
    """
    section = config.reward
    builders: dict[str, Callable[[], Component]] = {
        "final": lambda: FinalOutcome(success=section.success, failure=section.failure),
        "tool_use": lambda: ToolUse(needed=section.tool_use, misuse=section.tool_misuse),
        "result_utilization": lambda: ResultUtilization(value=section.result_utilization, rule=section.utilization_rule),
        "step_penalty": lambda: StepPenalty(penalty=section.step_penalty),
        "format": lambda: CallFormat(repair=section.format.repair, invalid=section.format.invalid),
        "tool_cost": lambda: ToolCost(
            rate=section.cost.call, cap=section.cost.cap, amount=declared(tool_costs), name="tool_cost"
        ),
        "latency": lambda: ToolCost(rate=section.cost.second, cap=section.cost.cap, amount=seconds, name="latency"),
        "overlong": lambda: Overlong(
            penalty=section.overlong.penalty, limit=config.model.max_length, buffer=section.overlong.buffer
        ),
        "judge": lambda: Judge.from_section(section.judge),
        "shaping": lambda: Shaping(weight=section.shaping, gamma=config.advantage.gamma),
    }
    active = dict(section.weights())
    components = [build() for name, build in builders.items() if name in active]
    for user in section.components:
        if user.weight:
            components += load_component(user)
    return components
