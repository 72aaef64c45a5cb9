"""The closed sets of words that research worlds are made of. Each is one word token, the same wherever it stands."""

from __future__ import annotations

from itertools import product

_HEADS = (
    "ve",
    "ka",
    "mi",
    "to",
    "su",
    "ra",
    "ne",
    "lo",
    "fi",
    "da",
    "pe",
    "gu",
    "za",
    "ho",
    "ji",
    "bo",
    "ti",
    "wu",
    "ya",
    "ke",
)
_TAILS = ("lor", "ran", "dis", "mek", "nus", "tav", "pil", "gor", "sen", "bax")

#: 200 people, of two syllables.
NAMES = tuple(head + tail for head, tail in product(_HEADS, _TAILS))

#: Ids of documents; a world uses a few of them, drawn anew for every task.
IDS = tuple(f"d{number}" for number in range(100))

#: Everybody has exactly one of each.
RELATIONS = ("boss", "friend", "rival", "mentor", "neighbor", "doctor", "tenant", "partner")
