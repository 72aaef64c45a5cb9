"""`build_market`: offers along a route and the one best set of bookings, drawn from a seed.

Prices within a listing are distinct, so the optimum is unique. Splits are disjoint by hash: a leg (from, to) of a route
belongs to 'val' or to the others, and some pairs of consecutive legs occur in 'comp' only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from envs.base import TRAIN, VAL
from envs.noise import uniform
from envs.trip.names import AMPLE, CITIES, FLIGHT_IDS, HOTEL_IDS, PRICES, STARS

COMP, DEEP = "comp", "deep"

#: What offers are listed by: (from, to) for flights, (city,) for hotels.
Listing = tuple[str, ...]

_OFFERS = 4
_VAL_SHARE = 0.25
_COMP_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a level asks for.

    Attributes:
        legs: flights, one after another.
        hotel: a hotel in the last city, too.
        in_order: offers are listed cheapest first.
        sold_out: the cheapest offer of a leg may turn out to be sold out on booking.
        budget: the hotel is to be the best that the budget leaves room for, not the cheapest.
    """

    legs: int
    hotel: bool = False
    in_order: bool = False
    sold_out: bool = False
    budget: bool = False


SHAPES: Mapping[int, Shape] = {
    1: Shape(legs=1, in_order=True),
    2: Shape(legs=2, in_order=True),
    3: Shape(legs=2, hotel=True, in_order=True),
    4: Shape(legs=2, hotel=True),
    5: Shape(legs=2, hotel=True, sold_out=True),
    6: Shape(legs=2, hotel=True, sold_out=True, budget=True),
    7: Shape(legs=3, hotel=True),
    8: Shape(legs=4, hotel=True),
}
LEVELS: Mapping[str, tuple[int, ...]] = {
    TRAIN: (1, 2, 3, 4, 5, 6),
    VAL: (1, 2, 3, 4, 5, 6),
    COMP: (2, 3, 4, 5, 6),
    DEEP: (7, 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A flight or a hotel on sale. `stars` is 0 for flights; `sold_out` shows only on booking."""

    price: int
    stars: int = 0
    sold_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Everything on sale, and the task.

    Attributes:
        route: the cities to travel, in order.
        listings: ids on offer, in the order in which they are shown.
        offers: id -> offer.
        best: the id to book, for each listing that the task is about, in order.
        refused: the cheaper id that is sold out, where there is one.
        budget: money to begin with.
    """

    shape: Shape
    route: tuple[str, ...]
    listings: Mapping[Listing, tuple[str, ...]]
    offers: Mapping[str, Offer]
    best: Mapping[Listing, str]
    refused: Mapping[Listing, str]
    budget: int


def is_val_leg(source: str, target: str) -> bool:
    """Whether the leg belongs to 'val', and so to no other split."""
    return uniform("leg", source, target) < _VAL_SHARE


def is_comp_pair(first: str, via: str, last: str) -> bool:
    """Whether the two legs follow each other in 'comp' only."""
    return uniform("legs", first, via, last) < _COMP_SHARE


def build_market(*, split: str, level: int, seed: int) -> Market:
    """The market of a seed, for a task of `level`."""
    rng = random.Random(f"trip {split} {level} {seed}")
    shape = SHAPES[level]
    route = _draw_route(rng, split, shape.legs)
    legs = list(pairwise(route))
    offers: dict[str, Offer] = {}
    listings = _draw_listings(rng, route, offers, in_order=shape.in_order)
    refused = _sell_out(rng, legs, listings, offers) if shape.sold_out else {}
    best: dict[Listing, str] = {leg: _cheapest(listings[leg], offers) for leg in legs}
    budget, hotels = AMPLE, listings[(route[-1],)]
    if shape.budget:
        left = _draw_stars(rng, hotels, offers)
        budget = left + sum(offers[best[leg]].price for leg in legs)
        affordable = [hotel for hotel in hotels if offers[hotel].price <= left]
        best[(route[-1],)] = max(affordable, key=lambda hotel: offers[hotel].stars)
    elif shape.hotel:
        best[(route[-1],)] = _cheapest(hotels, offers)
    return Market(shape=shape, route=route, listings=listings, offers=offers, best=best, refused=refused, budget=budget)


def _draw_listings(
    rng: random.Random, route: tuple[str, ...], offers: dict[str, Offer], *, in_order: bool
) -> dict[Listing, tuple[str, ...]]:
    """Flights along the route, there and back, and hotels in all of its cities; fills `offers`."""
    ways: list[Listing] = [way for leg in pairwise(route) for way in (leg, leg[::-1])]
    cities: list[Listing] = [(city,) for city in route]
    flight_ids = rng.sample(FLIGHT_IDS, _OFFERS * len(ways))
    hotel_ids = rng.sample(HOTEL_IDS, _OFFERS * len(cities))
    listings: dict[Listing, tuple[str, ...]] = {}
    for keys, ids in ((ways, flight_ids), (cities, hotel_ids)):
        for number, key in enumerate(keys):
            listings[key] = tuple(ids[number * _OFFERS : (number + 1) * _OFFERS])
            prices = rng.sample(PRICES, _OFFERS)
            listed = sorted(prices) if in_order else prices
            offers.update({offer: Offer(price=price) for offer, price in zip(listings[key], listed, strict=True)})
    return listings


def _draw_route(rng: random.Random, split: str, legs: int) -> tuple[str, ...]:
    while True:
        route = [rng.choice(CITIES)]
        while len(route) <= legs:
            allowed = [city for city in CITIES if city not in route and is_val_leg(route[-1], city) == (split == VAL)]
            route.append(rng.choice(allowed))
        held_out = any(is_comp_pair(*three) for three in zip(route, route[1:], route[2:], strict=False))
        if held_out == (split == COMP):
            return tuple(route)


def _cheapest(ids: tuple[str, ...], offers: Mapping[str, Offer]) -> str:
    return min((offer for offer in ids if not offers[offer].sold_out), key=lambda offer: offers[offer].price)


def _sell_out(
    rng: random.Random,
    legs: list[tuple[str, str]],
    listings: Mapping[Listing, tuple[str, ...]],
    offers: dict[str, Offer],
) -> dict[Listing, str]:
    """Sell out the cheapest offer of one leg or more; leg -> that offer."""
    chosen = rng.sample(legs, rng.randint(1, len(legs)))
    refused: dict[Listing, str] = {way: _cheapest(listings[way], offers) for way in legs if way in chosen}
    for offer in refused.values():
        offers[offer] = replace(offers[offer], sold_out=True)
    return refused


def _draw_stars(rng: random.Random, ids: tuple[str, ...], offers: dict[str, Offer]) -> int:
    """Give dearer hotels more stars; the money that allows some of them but not the best."""
    dearer = sorted(ids, key=lambda offer: offers[offer].price)
    for offer, stars in zip(dearer, sorted(rng.sample(STARS, len(ids))), strict=True):
        offers[offer] = replace(offers[offer], stars=stars)
    last = rng.randrange(len(dearer) - 1)
    return rng.randrange(offers[dearer[last]].price, offers[dearer[last + 1]].price)
