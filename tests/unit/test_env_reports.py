"""Rules of the reports family's libraries, its tools, and its verdict."""

from __future__ import annotations

import json

import pytest

from cacherl.environment_settings import EnvSection
from envs.base import PlannedCall
from envs.registry import load_source
from envs.reports.library import LEVELS, SHAPES, build_library, is_comp_pair, is_val_hop
from envs.reports.names import ADDITIONS, FIELDS, IDS, NAMES, RELATIONS

CALM = load_source(EnvSection(name="reports", transient_failure_rate=0.0))
EVERY = [(split, level) for split, levels in LEVELS.items() for level in levels]


async def begin(level: int, seed: int = 1):
    env = CALM.make_env()
    await env.reset(CALM.get(f"reports/train/{level}/{seed}"), rollout_seed=0)
    return env, build_library(split="train", level=level, seed=seed)


async def make(env, tool: str, /, **arguments: str):
    return await env.step(CALM.format.render([PlannedCall(name=tool, arguments=arguments)]))


async def answer(env) -> float:
    return (await env.step("[ANSWER] done")).outcome


async def read_all(env, library) -> None:
    for title in library.chain[:-1]:
        await make(env, "read", id=library.ids[title])


def test_words_are_single_and_distinct():
    words = [*NAMES, *IDS, *FIELDS, *(addition for additions in ADDITIONS.values() for addition in additions)]
    assert len(NAMES) == 120
    assert len(set(words)) == len(words)
    assert all(word.isalnum() for word in words)


@pytest.mark.parametrize(("split", "level"), EVERY)
def test_libraries_are_honest(split, level):
    shape = SHAPES[level]
    for seed in range(60):
        library = build_library(split=split, level=level, seed=seed)
        assert library == build_library(split=split, level=level, seed=seed)
        assert len(set(library.chain)) == len(library.chain) == shape.hops + 1
        assert len(set(library.relations)) == shape.hops == len(library.report)
        hops = list(zip(library.chain, library.relations, library.chain[1:], strict=False))
        for title, relation, value in hops:
            assert library.facts[library.ids[title]][relation] == value
            name = library.names[title]
            alike = [other for other in library.names if library.names[other] == name and other != title]
            assert len(alike) == 2 * shape.distractors + shape.twins
            twins = [library.facts[library.ids[other]] for other in alike if relation in library.facts[library.ids[other]]]
            assert len(twins) == shape.twins
            assert value not in [facts[relation] for facts in twins]
        assert {is_val_hop(*hop) for hop in hops} == {split == "val"}
        pairs = zip(library.relations, library.relations[1:], strict=False)
        assert any(is_comp_pair(*pair) for pair in pairs) == (split == "comp")
        for document, facts in library.facts.items():
            assert tuple(facts) in {tuple(relations) for relations in RELATIONS.values()}
            (own,) = (title for title, identity in library.ids.items() if identity == document)
            assert set(facts.values()) <= set(library.ids) - {own}


def test_a_worked_question():
    task = CALM.get("reports/train/4/1")
    library = build_library(split="train", level=4, seed=1)
    first, second, third = library.relations
    assert task.messages[0].content == (
        f"Begin at {library.chain[0]}. Report {first}, then {second}, then {third}. Then answer done."
    )
    assert library.chain[-1] not in repr(task)


async def test_a_search_lists_whatever_shares_the_name():
    env, library = await begin(5)
    title = library.chain[0]
    name = library.names[title]
    for query in (title, name, f"the {name} please"):
        step = await make(env, "search", query=query)
        found = json.loads(step.messages[0].content)
        assert len(found) == 5
        assert found[library.ids[title]] == title
        assert all(name in other.split() for other in found.values())
        assert step.calls[0].tags == ("needed", "first" if query == title else "repeat")
    positions = []
    for seed in range(40):
        env, library = await begin(5, seed)
        found = json.loads((await make(env, "search", query=library.chain[0])).messages[0].content)
        positions.append(list(found.values()).index(library.chain[0]))
    assert set(positions) == {0, 1, 2, 3, 4}


async def test_at_the_first_levels_a_name_is_unique():
    env, library = await begin(2)
    step = await make(env, "search", query=library.chain[0])
    assert json.loads(step.messages[0].content) == {library.ids[library.chain[0]]: library.chain[0]}


async def test_documents_state_everything_and_others_are_irrelevant():
    env, library = await begin(5)
    step = await make(env, "read", id=library.ids[library.chain[0]])
    assert json.loads(step.messages[0].content) == dict(library.facts[library.ids[library.chain[0]]])
    assert step.calls[0].tags == ("needed", "first")
    twin = next(t for t, n in library.names.items() if n == library.names[library.chain[0]] and t != library.chain[0])
    assert (await make(env, "read", id=library.ids[twin])).calls[0].tags == ("irrelevant", "first")
    for tool, arguments in (("read", {"id": "nothing"}), ("search", {"query": "works"})):
        assert (await make(env, tool, **arguments)).messages[0].content == '{"error":"not found"}'


async def test_the_report_counts_when_it_is_exact_and_its_evidence_was_read():
    env, library = await begin(4)
    await read_all(env, library)
    step = await make(env, "submit_report", **library.report)
    assert step.messages[0].content == '{"fields":3}'
    assert step.calls[0].tags == ("needed", "first")
    assert env.verdict() == 1.0
    assert await answer(env) == 1.0


async def test_the_order_of_reading_and_reporting_is_free():
    env, library = await begin(4)
    await make(env, "submit_report", **library.report)
    assert env.verdict() == 0.0
    await read_all(env, library)
    assert await answer(env) == 1.0


@pytest.mark.parametrize("fault", ["too little", "too much", "wrong", "replaced", "no evidence", "none", "other word"])
async def test_a_report_that_is_not_exact_fails(fault):
    env, library = await begin(4)
    report = dict(library.report)
    if fault != "no evidence":
        await read_all(env, library)
    if fault == "too little":
        report.popitem()
    if fault == "too much":
        report |= {field: library.chain[0] for field in FIELDS if field not in report}
    if fault == "wrong":
        report[library.relations[0]] = library.chain[0]
    if fault != "none":
        await make(env, "submit_report", **report)
    if fault == "replaced":
        await make(env, "submit_report", **{library.relations[0]: library.chain[1]})
    outcome = (await env.step("[ANSWER] finished")).outcome if fault == "other word" else await answer(env)
    assert outcome == 0.0


async def test_reports_are_checked_by_schema():
    env, _ = await begin(1)
    for arguments, error in (
        ({}, "submit_report must satisfy minProperties 1"),
        ({"colour": "red"}, f"submit_report takes only {', '.join(FIELDS[:-1])} and {FIELDS[-1]}"),
    ):
        assert json.loads((await make(env, "submit_report", **arguments)).messages[0].content) == {"error": error}
