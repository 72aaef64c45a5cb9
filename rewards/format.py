"""CallFormat: calls that had to be repaired, or are not valid."""

from __future__ import annotations

from dataclasses import dataclass

from rewards.base import Reach, Step
from rewards.components import MODEL_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """`repair` (<= 0) for a call that the parser had to repair, `invalid` (<= 0) for one that no tool could be called with."""

    repair: float
    invalid: float
    name: str = "format"

    def turn(self, step: Step) -> float:
        invalid = sum(call.error in MODEL_FAILED for call in step.calls)
        repaired = sum(bool(call.repairs) for call in step.calls if call.error not in MODEL_FAILED)
        return self.invalid * invalid + self.repair * repaired

    def reach(self, turns: int) -> Reach:
        del turns
        return Reach()  # a policy that writes its calls properly pays nothing
