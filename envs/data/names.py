"""The closed sets of words and numbers that tables are made of."""

from __future__ import annotations

TABLES = (
    "orders", "visits", "repairs", "loans", "trips", "harvests", "lessons", "rentals", "concerts", "matches", "shipments",
    "surveys",
)  # fmt: skip
NUMBERS = (
    "price", "weight", "length", "score", "age", "width", "speed", "cost", "height", "volume", "rank", "delay", "profit",
    "size", "depth", "load",
)  # fmt: skip
LABELS: dict[str, tuple[str, ...]] = {
    "city": ("oslo", "lima", "cairo", "quito", "delhi", "tunis"),
    "color": ("red", "blue", "green", "black", "white", "amber"),
    "owner": ("ada", "bela", "cleo", "dora", "emil", "finn"),
    "team": ("lions", "foxes", "hawks", "wolves", "bears", "crows"),
}

#: A number in a table is one of these; so every answer is between 0 and `LARGEST`.
VALUES = range(1, 31)
ROWS = 6
LARGEST = 3 * ROWS * VALUES[-1]
