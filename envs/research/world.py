"""`build_world`: a small world and a question about it, drawn from a seed.

The question is a chain: start -> relations[0] -> chain[1] -> relations[1] -> ... -> chain[-1], the answer. Rules that
keep it honest: no person occurs twice in a chain, so neither the start nor a value on the way is the answer; nobody has
the same person for two relations, so only the right relation leads on.

Splits are disjoint by hash. Every hop (person, relation, person) of a chain belongs either to 'val' or to the others, and
some ordered pairs of relations occur in 'comp' only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from envs.base import TRAIN, VAL
from envs.noise import uniform
from envs.research.names import IDS, NAMES, RELATIONS

COMP, DEEP = "comp", "deep"

#: Hops that each split offers.
LEVELS: Mapping[str, tuple[int, ...]] = {TRAIN: (1, 2, 3), VAL: (1, 2, 3), COMP: (2, 3), DEEP: (4, 5)}

PEOPLE = 12
_VAL_SHARE = 0.25
_COMP_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who is what to whom, and the question.

    Attributes:
        ids: person -> document id, for everybody in this world.
        facts: document id -> relation -> person.
        chain: the persons on the way, start first, answer last; one more than `relations`.
        relations: what leads from each person of the chain to the next.
    """

    ids: Mapping[str, str]
    facts: Mapping[str, Mapping[str, str]]
    chain: tuple[str, ...]
    relations: tuple[str, ...]


def is_val_hop(person: str, relation: str, value: str) -> bool:
    """Whether the hop belongs to 'val', and so to no other split."""
    return uniform("hop", person, relation, value) < _VAL_SHARE


def is_comp_pair(first: str, second: str) -> bool:
    """Whether the two relations follow each other in 'comp' only."""
    return uniform("pair", first, second) < _COMP_SHARE


def build_world(*, split: str, level: int, seed: int) -> World:
    """The world of a seed, with a chain of `level` hops."""
    rng = random.Random(f"research {split} {level} {seed}")
    people = rng.sample(NAMES, PEOPLE)
    while (chain := _draw_chain(rng, people, split, relations := _draw_relations(rng, split, level))) is None:
        people = rng.sample(NAMES, PEOPLE)
    ids = dict(zip(people, rng.sample(IDS, PEOPLE), strict=True))
    hops = {person: (relation, value) for person, relation, value in zip(chain, relations, chain[1:], strict=False)}
    facts = {ids[person]: _draw_facts(rng, people, person, hops.get(person)) for person in people}
    return World(ids=ids, facts=facts, chain=chain, relations=relations)


def _draw_relations(rng: random.Random, split: str, level: int) -> tuple[str, ...]:
    while True:
        relations = tuple(rng.sample(RELATIONS, level))
        held_out = any(is_comp_pair(*pair) for pair in pairwise(relations))
        if held_out == (split == COMP):
            return relations


def _draw_chain(rng: random.Random, people: list[str], split: str, relations: tuple[str, ...]) -> tuple[str, ...] | None:
    """A chain through `people` whose every hop belongs to the split; None when it runs into a dead end."""
    chain = [rng.choice(people)]
    for relation in relations:
        allowed = [p for p in people if p not in chain and is_val_hop(chain[-1], relation, p) == (split == VAL)]
        if not allowed:
            return None
        chain.append(rng.choice(allowed))
    return tuple(chain)


def _draw_facts(rng: random.Random, people: list[str], person: str, hop: tuple[str, str] | None) -> dict[str, str]:
    values = rng.sample([other for other in people if other != person], len(RELATIONS))
    if hop is not None:
        relation, value = hop
        place = RELATIONS.index(relation)
        if value in values:
            other = values.index(value)
            values[other] = values[place]
        values[place] = value
    return dict(zip(RELATIONS, values, strict=True))
