"""Offers, bookings and money of one trip, and the verdict: exactly the best set is booked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envs.base import PlannedCall, ToolSpec
from envs.calllog import CallLog
from envs.simulator import ToolResult
from envs.trip.market import Market

DONE = "done"

NOT_FOUND = "not found"
SOLD_OUT = "sold out"
OVER_BUDGET = "over budget"
ALREADY_BOOKED = "already booked"
NOT_BOOKED = "not booked"
ERRORS = (NOT_FOUND, SOLD_OUT, OVER_BUDGET, ALREADY_BOOKED, NOT_BOOKED)


def _spec(name: str, description: str, *properties: str, read_only: bool) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {key: {"type": "string"} for key in properties},
            "required": list(properties),
            "additionalProperties": False,
        },
        read_only=read_only,
    )


TOOLS = (
    _spec("flights", "List the flights from one city to another: id and price.", "src", "dst", read_only=True),
    _spec("hotels", "List the hotels of a city: id and price.", "city", read_only=True),
    _spec("book", "Book a flight or a hotel by its id.", "id", read_only=False),
    _spec("cancel", "Cancel a booking by its id; the money comes back.", "id", read_only=False),
    _spec("budget", "Tell how much money is left.", read_only=True),
)


class TripSimulator:
    """One traveller in one market."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._booked: set[str] = set()
        self._best = set(market.best.values())
        self._log = CallLog(needed=needed_calls(market))

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        match name:
            case "flights":
                outcome = self._list((arguments["src"], arguments["dst"]))
            case "hotels":
                outcome = self._list((arguments["city"],))
            case "book":
                outcome = self._book(arguments["id"])
            case "cancel":
                return self._cancel(arguments["id"])
            case _:
                outcome = {"left": self._left}
        tags = self._log.record(name, arguments)
        return ToolResult(error=outcome, tags=tags) if isinstance(outcome, str) else ToolResult(content=outcome, tags=tags)

    @property
    def _left(self) -> int:
        return self._market.budget - sum(self._market.offers[offer].price for offer in self._booked)

    def _list(self, listing: tuple[str, ...]) -> dict[str, Any] | str:
        ids = self._market.listings.get(listing)
        return NOT_FOUND if ids is None else {offer: self._show(offer) for offer in ids}

    def _show(self, offer_id: str) -> Any:
        offer = self._market.offers[offer_id]
        return {"stars": offer.stars, "price": offer.price} if offer.stars else offer.price

    def _book(self, offer_id: str) -> dict[str, Any] | str:
        offer = self._market.offers.get(offer_id)
        if offer is None:
            return NOT_FOUND
        if offer_id in self._booked:
            return ALREADY_BOOKED
        if offer.sold_out:
            return SOLD_OUT
        if offer.price > self._left:
            return OVER_BUDGET
        self._booked.add(offer_id)
        return {"booked": offer_id}

    def _cancel(self, offer_id: str) -> ToolResult:
        """To undo a mistake is neither needed nor irrelevant: it carries no tag."""
        if offer_id not in self._booked:
            return ToolResult(error=NOT_BOOKED, tags=self._log.record("cancel", {"id": offer_id}))
        self._booked.remove(offer_id)
        mistake = offer_id not in self._best
        return ToolResult(content={"cancelled": offer_id}, tags=() if mistake else self._log.record("cancel", {"id": offer_id}))

    def answer(self, value: str | None) -> float:
        return float(value == DONE and self._booked == self._best)

    def verdict(self) -> float:
        return float(self._booked == self._best)

    def potential(self) -> float:
        return self._log.progress

    def state(self) -> dict[str, Any]:
        return {"booked": sorted(self._booked), "done": self._log.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._booked = set(state["booked"])
        self._log.restore(state["done"])


def needed_calls(market: Market) -> Iterator[PlannedCall]:
    """The calls that solve the task, in order; booking a sold-out offer is how one learns of it."""
    for listing, best in market.best.items():
        is_hotel = len(listing) == 1
        if is_hotel and market.shape.budget:
            yield PlannedCall(name="budget", arguments={})
        if is_hotel:
            yield PlannedCall(name="hotels", arguments={"city": listing[0]})
        else:
            yield PlannedCall(name="flights", arguments={"src": listing[0], "dst": listing[1]})
        if listing in market.refused:
            yield PlannedCall(name="book", arguments={"id": market.refused[listing]})
        yield PlannedCall(name="book", arguments={"id": best})
