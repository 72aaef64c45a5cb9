"""The closed sets of words and numbers that trips are made of."""

from __future__ import annotations

from itertools import product

_HEADS = ("al", "bri", "cor", "den", "el", "far", "gan", "hal")
_TAILS = ("burg", "ton", "via", "mere", "dale")

#: 40 cities.
CITIES = tuple(head + tail for head, tail in product(_HEADS, _TAILS))
FLIGHT_IDS = tuple(f"f{number}" for number in range(100))
HOTEL_IDS = tuple(f"h{number}" for number in range(60))

#: Prices of one offer lie in this range.
PRICES = range(10, 100)
STARS = range(1, 6)
#: What a traveller has where the budget plays no part: enough for every plan.
AMPLE = 500
