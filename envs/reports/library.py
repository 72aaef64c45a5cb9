"""`build_library`: documents about companies, people and cities, and a chain through them to report on, drawn from a seed.

Rules that keep it honest: nothing occurs twice in a chain; a document whose title could be taken for one of the chain's says
something else about the relation in question. Splits are disjoint by hash: a hop (title, relation, title) of a chain belongs
to 'val' or to the others, and some pairs of consecutive relations occur in 'comp' only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from envs.base import TRAIN, VAL
from envs.noise import uniform
from envs.reports.names import ADDITIONS, IDS, NAMES, RELATIONS, title

COMP, DEEP = "comp", "deep"

#: Entities of each kind, each with a name of its own, before look-alikes are added.
_ENTITIES = 5
_VAL_SHARE = 0.25
_COMP_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a level asks for.

    Attributes:
        hops: relations to follow, and fields to report.
        distractors: everything that must be read shares its name with one entity of each other kind.
        twins: so many of the same kind, too: near-duplicate titles.
    """

    hops: int
    distractors: bool = False
    twins: int = 0


SHAPES: Mapping[int, Shape] = {
    1: Shape(hops=1),
    2: Shape(hops=2),
    3: Shape(hops=2, distractors=True),
    4: Shape(hops=3, distractors=True),
    5: Shape(hops=3, distractors=True, twins=2),
    6: Shape(hops=4, distractors=True, twins=2),
    7: Shape(hops=5, distractors=True, twins=2),
}
LEVELS: Mapping[str, tuple[int, ...]] = {
    TRAIN: (1, 2, 3, 4, 5),
    VAL: (1, 2, 3, 4, 5),
    COMP: (2, 3, 4, 5),
    DEEP: (6, 7),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """What a document is about."""

    kind: str
    name: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Every document, and the task.

    Attributes:
        ids: title -> document id, in the order in which a search lists them.
        names: title -> the name in it, which is what a search goes by.
        facts: document id -> relation -> title.
        chain: titles on the way, start first; one more than `relations`.
        relations: what leads from each title of the chain to the next.
    """

    ids: Mapping[str, str]
    names: Mapping[str, str]
    facts: Mapping[str, Mapping[str, str]]
    chain: tuple[str, ...]
    relations: tuple[str, ...]

    @property
    def report(self) -> dict[str, str]:
        """The fields to submit: relation -> title."""
        return dict(zip(self.relations, self.chain[1:], strict=True))


def is_val_hop(subject: str, relation: str, value: str) -> bool:
    """Whether the hop belongs to 'val', and so to no other split."""
    return uniform("report hop", subject, relation, value) < _VAL_SHARE


def is_comp_pair(first: str, second: str) -> bool:
    """Whether the two relations follow each other in 'comp' only."""
    return uniform("report pair", first, second) < _COMP_SHARE


def build_library(*, split: str, level: int, seed: int) -> Library:
    """The library of a seed, for a task of `level`."""
    rng = random.Random(f"reports {split} {level} {seed}")
    shape = SHAPES[level]
    while True:
        names = rng.sample(NAMES, _ENTITIES * len(RELATIONS))
        entities = [_entity(kind, names.pop(), rng.choice(ADDITIONS[kind])) for kind in RELATIONS for _ in range(_ENTITIES)]
        drawn = _draw_chain(rng, entities, split, shape.hops)
        if drawn is not None:
            return _shelve(rng, entities, shape, *drawn)


def _entity(kind: str, name: str, addition: str) -> Entity:
    return Entity(kind=kind, name=name, title=title(kind, name, addition))


def _draw_chain(
    rng: random.Random, entities: list[Entity], split: str, hops: int
) -> tuple[list[Entity], tuple[str, ...]] | None:
    """A chain whose every hop belongs to the split and whose relations are all different; None at a dead end."""
    chain, relations = [rng.choice(entities)], list[str]()
    while len(relations) < hops:
        options = [
            (relation, entity)
            for relation, kind in RELATIONS[chain[-1].kind].items()
            for entity in entities
            if entity.kind == kind and entity not in chain and relation not in relations
            if is_val_hop(chain[-1].title, relation, entity.title) == (split == VAL)
        ]
        if not options:
            return None
        relation, entity = rng.choice(options)
        chain.append(entity)
        relations.append(relation)
    held_out = any(is_comp_pair(*pair) for pair in pairwise(relations))
    return (chain, tuple(relations)) if held_out == (split == COMP) else None


def _shelve(
    rng: random.Random, entities: list[Entity], shape: Shape, chain: list[Entity], relations: tuple[str, ...]
) -> Library:
    everything = [*entities, *(alike for entity in chain[:-1] for alike in _look_alikes(rng, entity, shape))]
    rng.shuffle(everything)
    ids = dict(zip((entity.title for entity in everything), rng.sample(IDS, len(everything)), strict=True))
    hops = {entity.title: (relation, value) for entity, relation, value in zip(chain, relations, chain[1:], strict=False)}
    by_name = {entity.name: hops[entity.title] for entity in chain[:-1]}
    facts = {}
    for entity in everything:
        stated = {relation: _draw_value(rng, entity, kind, entities) for relation, kind in RELATIONS[entity.kind].items()}
        relation, value = by_name.get(entity.name, ("", entity))
        if entity.title in hops:
            stated[relation] = value.title
        elif stated.get(relation) == value.title:  # a look-alike says otherwise
            others = [other for other in entities if other.kind == value.kind and other.name not in (value.name, entity.name)]
            stated[relation] = rng.choice(others).title
        facts[ids[entity.title]] = stated
    return Library(
        ids=ids,
        names={entity.title: entity.name for entity in everything},
        facts=facts,
        chain=tuple(entity.title for entity in chain),
        relations=relations,
    )


def _look_alikes(rng: random.Random, entity: Entity, shape: Shape) -> list[Entity]:
    kinds = [kind for kind in RELATIONS if shape.distractors and kind != entity.kind]
    alike = [_entity(kind, entity.name, rng.choice(ADDITIONS[kind])) for kind in kinds]
    free = [title(entity.kind, entity.name, addition) for addition in ADDITIONS[entity.kind]]
    twins = rng.sample([one for one in free if one != entity.title], shape.twins)
    return [*alike, *(Entity(kind=entity.kind, name=entity.name, title=twin) for twin in twins)]


def _draw_value(rng: random.Random, entity: Entity, kind: str, entities: list[Entity]) -> str:
    return rng.choice([other for other in entities if other.kind == kind and other.name != entity.name]).title
