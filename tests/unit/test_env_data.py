"""Rules of the data family's questions, its tools, and its verdict."""

from __future__ import annotations

import pytest

from cacherl.environment_settings import EnvSection
from envs.data.names import LARGEST
from envs.data.question import LEVELS, SHAPES, build_question, is_comp_pair, is_val_part
from envs.data.table import Filter, Table
from envs.registry import load_source

CALM = load_source(EnvSection(name="data", levels=(1,), transient_failure_rate=0.0))
EVERY = [(split, level) for split, levels in LEVELS.items() for level in levels]


@pytest.mark.parametrize(("split", "level"), EVERY)
def test_questions_keep_their_rules(split, level):
    for seed in range(100):
        question = build_question(split=split, level=level, seed=seed)
        assert question == build_question(split=split, level=level, seed=seed)
        assert len(question.parts) == SHAPES[level].parts == len(question.operations) + 1 == len(set(question.parts))
        assert 0 < min(question.totals) <= max(question.totals) <= LARGEST
        assert question.answer not in (*question.values[1:], *question.totals[:-1])
        columns = [name for table in question.tables.values() for name in (*table.numbers, *table.labels)]
        assert len(set(columns)) == len(columns) == 12
        for part in question.parts:
            assert is_val_part(part.aggregate, part.column, part.table) == (split == "val")
        pairs = zip(question.parts, question.operations, question.parts[1:], strict=False)
        assert any(is_comp_pair(a.aggregate, op, b.aggregate) for a, op, b in pairs) == (split == "comp")


def test_a_table_selects_the_rows_of_a_label():
    table = Table(numbers={"price": (3, 5, 8)}, labels={"city": ("oslo", "lima", "oslo")})
    assert table.select("price", None) == (3, 5, 8)
    assert table.select("price", Filter(column="city", value="oslo")) == (3, 8)
    assert table.select("price", Filter(column="city", value="cairo")) == ()


def call(tool: str, arguments: str) -> str:
    return f"[TOOL_CALL] {tool} {arguments} [/TOOL_CALL]"


async def begin(level: int):
    env = CALM.make_env()
    task = CALM.get(f"data/train/{level}/1")
    await env.reset(task, rollout_seed=0)
    return env, task


async def test_a_worked_question():
    env, task = await begin(5)
    question = "What is the max of price where city is quito plus the min of speed where owner is emil?"
    assert task.messages[0].content == question
    said = []
    for tool, arguments in (
        ("tables", "{}"),
        ("columns", '{"table":"rentals"}'),
        ("query", '{"table":"rentals","agg":"max","column":"price","where":"city","equals":"quito"}'),
        ("query", '{"table":"lessons","agg":"min","column":"speed","where":"owner","equals":"emil"}'),
        ("calc", '{"a":21,"op":"add","b":6}'),
    ):
        step = await env.step(call(tool, arguments))
        said.append(step.messages[0].content)
        assert step.calls[0].tags == ("needed", "first")
    assert said == [
        '{"tables":["lessons","orders","rentals"]}',
        '{"columns":["weight","price","load","city"]}',
        '{"value":21}',
        '{"value":6}',
        '{"value":27}',
    ]
    assert (await env.step("[ANSWER] 27")).outcome == 1.0


async def test_the_number_counts_only_when_every_aggregate_was_queried():
    env, _ = await begin(5)
    await env.step(call("query", '{"table":"rentals","agg":"max","column":"price","where":"city","equals":"quito"}'))
    assert (await env.step("[ANSWER] 27")).outcome == 0.0


async def test_mental_arithmetic_is_allowed():
    env, task = await begin(3)
    for step in CALM.solution(task).steps[:2]:
        await env.step(CALM.format.render([step.call]))
    assert (await env.step(f"[ANSWER] {CALM.solution(task).answer}")).outcome == 1.0


@pytest.mark.parametrize(
    ("tool", "arguments", "content"),
    [
        ("columns", '{"table":"nothing"}', "no such table"),
        ("query", '{"table":"nothing","agg":"max","column":"price"}', "no such table"),
        ("query", '{"table":"rentals","agg":"max","column":"city"}', "no such column"),
        ("query", '{"table":"rentals","agg":"max","column":"price","where":"owner","equals":"emil"}', "no such column"),
        ("query", '{"table":"rentals","agg":"max","column":"price","where":"city","equals":"mars"}', "no rows"),
        (
            "query",
            '{"table":"rentals","agg":"max","column":"price","where":"city"}',
            "query takes equals together with where; query takes where together with equals",
        ),
        ("query", '{"table":"rentals","agg":"median","column":"price"}', "agg must be sum, max, min or count"),
        ("calc", '{"a":1,"op":"subtract","b":2}', "result is out of range"),
        ("calc", '{"a":541,"op":"add","b":2}', "a must satisfy maximum 540"),
    ],
)
async def test_errors_say_what_was_wrong(tool, arguments, content):
    env, _ = await begin(5)
    step = await env.step(call(tool, arguments))
    assert step.messages[0].content == f'{{"error":"{content}"}}'
    assert not step.calls[0].ok
