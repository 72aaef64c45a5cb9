"""The closed sets of words and numbers that tables are made of."""

from __future__ import annotations

TABLES = ("orders", "visits", "repairs", "loans", "trips", "lessons", "rentals", "shipments")
NUMBERS = (
    "price", "weight", "length", "score", "age", "width", "speed", "cost", "height", "volume", "rank", "delay", "profit",
    "size", "depth", "load",
)  # fmt: skip
#: Labels of the rows of a table.
LABELS: dict[str, tuple[str, ...]] = {
    "city": ("oslo", "lima", "cairo", "quito", "delhi"),
    "color": ("red", "blue", "green", "black", "white"),
    "day": ("monday", "tuesday", "thursday", "friday", "sunday"),
    "kind": ("small", "medium", "large", "express", "custom"),
}
#: Labels of people.
GROUPS: dict[str, tuple[str, ...]] = {
    "team": ("lions", "foxes", "hawks", "wolves"),
    "branch": ("north", "south", "east", "west"),
}
PEOPLE = ("ada", "bela", "cleo", "dora", "emil", "finn", "gina", "hugo")

#: The table of people, its key, and the column of the other tables that refers to it.
PEOPLE_TABLE, NAME, PERSON = "people", "name", "person"

#: A number in a table is one of these.
VALUES = range(1, 41)
ROWS = 16
#: An answer lies between these.
SMALLEST, LARGEST = 11, ROWS * VALUES[-1]
