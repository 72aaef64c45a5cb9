"""Judgement: a score that is known to be one."""

from __future__ import annotations

import math
from dataclasses import dataclass


class JudgementError(Exception):
    """A scoring model gave no score.

    Args:
        final: asking again would not help.
    """

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


@dataclass(frozen=True, slots=True)
class Judgement:
    """A score in [0, 1].

    Raises:
        JudgementError: it is anything else.
    """

    score: float

    def __post_init__(self) -> None:
        value = self.score
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
            raise JudgementError(f"score {value!r:.40} is not a number from 0 to 1")
