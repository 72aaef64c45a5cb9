"""The closed sets of words that libraries are made of: names, what titles add to them, and what documents say."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

_HEADS = ("al", "bor", "cre", "dun", "eri", "fal", "gre", "hol", "iv", "jun", "kes", "lam")
_TAILS = ("dane", "feld", "gard", "hart", "lock", "mond", "rick", "stone", "wick", "worth")

#: 120 names; companies, people and cities share them.
NAMES = tuple(head + tail for head, tail in product(_HEADS, _TAILS))
IDS = tuple(f"d{number}" for number in range(100))

COMPANY, PERSON, CITY = "company", "person", "city"
#: What a title adds to the name: after a company's, before the others'.
ADDITIONS: Mapping[str, tuple[str, ...]] = {
    COMPANY: ("works", "labs", "foods", "lines", "bank", "mills"),
    PERSON: ("ada", "bela", "cleo", "dora", "emil", "finn"),
    CITY: ("north", "south", "east", "west", "old", "new"),
}
#: Kind -> relation -> kind of its value; every document states all relations of its kind.
RELATIONS: Mapping[str, Mapping[str, str]] = {
    COMPANY: {"founder": PERSON, "home": CITY, "rival": COMPANY},
    PERSON: {"employer": COMPANY, "birthplace": CITY, "mentor": PERSON},
    CITY: {"mayor": PERSON, "sponsor": COMPANY, "sister": CITY},
}
#: Every relation, and so every field that a report may have.
FIELDS = tuple(relation for relations in RELATIONS.values() for relation in relations)


def title(kind: str, name: str, addition: str) -> str:
    """'alfeld works', 'ada alfeld' or 'north alfeld'."""
    return f"{name} {addition}" if kind == COMPANY else f"{addition} {name}"
