"""`TripFamily`: "Book the cheapest flights from alton to denvia to elburg, and the cheapest hotel there. Then answer done." """

from __future__ import annotations

from collections.abc import Iterator

from envs.base import PlannedCall, Solution, SolutionStep
from envs.jsontext import compact
from envs.observation import render_error
from envs.simulator import Scenario
from envs.trip.market import LEVELS, Market, build_market
from envs.trip.names import AMPLE, CITIES, FLIGHT_IDS, HOTEL_IDS
from envs.trip.simulator import DONE, ERRORS, SOLD_OUT, TOOLS, TripSimulator, needed_calls

#: What an agent that gives up at once would say.
_NOTHING = "nothing"


class TripFamily:
    """Draws trips; see `envs.trip.market` for levels and splits."""

    name = "trip"
    tools = TOOLS

    def levels(self, split: str) -> tuple[int, ...]:
        return LEVELS.get(split, ())

    def build(self, *, split: str, level: int, seed: int) -> Scenario:
        market = build_market(split=split, level=level, seed=seed)
        return Scenario(
            prompt=question(market),
            params={"route": list(market.route)},
            solution=_solve(market),
            start=lambda: TripSimulator(market),
        )

    def texts(self) -> Iterator[str]:
        yield from (*CITIES, *FLIGHT_IDS, *HOTEL_IDS, _NOTHING)
        yield from map(str, range(AMPLE + 1))
        yield from map(render_error, ERRORS)
        yield compact({"f0": 1, "f1": 2})
        yield compact({"h0": {"stars": 1, "price": 2}, "h1": {"stars": 1, "price": 2}})
        yield compact({"booked": "f0"})
        yield compact({"cancelled": "f0"})
        yield compact({"left": 1})


def question(market: Market) -> str:
    """The prompt."""
    flights = "flight" if market.shape.legs == 1 else "flights"
    text = f"Book the cheapest {flights} from {' to '.join(market.route)}"
    if market.shape.budget:
        text += ", and the best hotel there within the budget"
    elif market.shape.hotel:
        text += ", and the cheapest hotel there"
    return f"{text}. Then answer {DONE}."


def _solve(market: Market) -> Solution:
    return Solution(steps=tuple(_step(market, call) for call in needed_calls(market)), answer=DONE, guess=_NOTHING)


def _step(market: Market, call: PlannedCall) -> SolutionStep:
    if call.name != "book":
        return SolutionStep(call=call)
    if call.arguments["id"] in market.refused.values():
        return SolutionStep(call=call, error=SOLD_OUT)
    return SolutionStep(call=call, partial_answer=DONE)
