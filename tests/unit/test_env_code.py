"""Rules of the code family's questions, what its calls show, and its verdict."""

from __future__ import annotations

import csv
import io
import random
import sqlite3
import statistics

import pytest

from cacherl.environment_settings import EnvSection, SandboxSection
from cacherl.errors import ConfigError
from envs.agents import ScriptedAgent
from envs.base import PlannedCall
from envs.code.names import LARGEST, NAME, PEOPLE_TABLE, PERSON, SMALLEST
from envs.code.programs import solving_calls
from envs.code.question import LEVELS, SHAPES, build_question, is_comp_pair, is_val_measure
from envs.episode import play
from envs.registry import load_source

CALM = load_source(EnvSection(name="code", levels=(1,), transient_failure_rate=0.0))
EVERY = [(split, level) for split, levels in LEVELS.items() for level in levels]


@pytest.mark.parametrize(("split", "level"), EVERY)
def test_questions_keep_their_rules(split, level):
    for seed in range(60):
        question = build_question(split=split, level=level, seed=seed)
        assert question == build_question(split=split, level=level, seed=seed)
        measure, shape = question.measure, SHAPES[level]
        assert measure.function in shape.functions
        assert (measure.above is not None, measure.value is None, measure.joined) == (shape.above, shape.grouped, shape.joined)
        assert SMALLEST <= question.answer <= LARGEST
        assert measure.above is None or measure.above[1] != question.answer
        assert is_val_measure(measure.function, measure.column, measure.table) == (split == "val")
        assert is_comp_pair(measure.function, measure.label) == (split == "comp")
        assert list(question.tables)[-1] == PEOPLE_TABLE
        numbers = [
            column for table in question.tables.values() for column, value in table.rows[0].items() if value != str(value)
        ]
        assert len(set(numbers)) == len(numbers) == 9


@pytest.mark.parametrize(("split", "level"), EVERY)
def test_the_answer_is_what_the_tables_say(split, level):
    """Computed once more from the files alone, by other means than the family's and the oracle's."""
    for seed in range(40):
        question = build_question(split=split, level=level, seed=seed)
        measure = question.measure
        files = {name: list(csv.DictReader(io.StringIO(table.csv()))) for name, table in question.tables.items()}
        team = {row[NAME]: row for row in files[PEOPLE_TABLE]}
        groups: dict[str, list[int]] = {}
        for row in files[measure.table]:
            if measure.above is None or int(row[measure.above[0]]) > measure.above[1]:
                label = team[row[PERSON]][measure.label] if measure.joined else row[measure.label]
                groups.setdefault(label, []).append(int(row[measure.column]))
        reduce = {"sum": sum, "max": max, "min": min, "median": statistics.median, "spread": lambda v: max(v) - min(v)}
        results = {label: reduce[measure.function](values) for label, values in groups.items()}
        if measure.value is not None:
            assert question.answer == results[measure.value]
        else:
            assert question.answer == {"largest": max, "smallest": min}[measure.extreme](results.values())


@pytest.mark.parametrize(("split", "level"), EVERY)
def test_no_shortcut_comes_to_the_answer(split, level):
    """Computed from the files: without the condition on the label, without the bound, without either, without groups."""
    factors = set()
    for seed in range(40):
        question = build_question(split=split, level=level, seed=seed)
        measure = question.measure
        people = {row[NAME]: row for row in question.tables[PEOPLE_TABLE].rows}
        rows = question.tables[measure.table].rows
        labelled = [row for row in rows if (people[row[PERSON]] if measure.joined else row)[measure.label] == measure.value]
        reduce = {"sum": sum, "max": max, "min": min, "median": statistics.median, "spread": lambda v: max(v) - min(v)}
        careless = [rows]
        if measure.above is not None:
            column, bound = measure.above
            careless.append([row for row in rows if row[column] > bound])
            careless += [labelled] if labelled else []
        for some in careless:
            assert question.answer != reduce[measure.function]([row[measure.column] for row in some])
        factors.add(question.other.answer / question.answer)
    assert all(factor >= 3 and factor == int(factor) for factor in factors)
    assert len(factors) > 20, "a multiple that is always the same can be printed beside a guess"


def test_csv_and_sql_hold_the_same_rows():
    for table in build_question(split="train", level=5, seed=3).tables.values():
        database = sqlite3.connect(":memory:")
        database.executescript(table.sql())
        cursor = database.execute(f"SELECT * FROM {table.name}")
        assert [part[0] for part in cursor.description] == list(table.columns)
        assert [tuple(map(str, row)) for row in cursor] == [tuple(row) for row in csv.reader(io.StringIO(table.csv()))][1:]
        database.close()


async def episode(task_id: str, *turns: PlannedCall | str):
    """Contents of the tool results with the calls' errors and tags, and the outcome."""
    env = CALM.make_env()
    texts = [turn if isinstance(turn, str) else CALM.format.render([turn]) for turn in turns]
    played = await play(env, CALM.get(task_id), ScriptedAgent(texts), rollout_seed=0, max_turns=len(texts))
    await env.close()
    shown = [
        (turn.step.messages[0].content, turn.step.calls[0].error, turn.step.calls[0].tags)
        for turn in played.turns
        if turn.step.calls
    ]
    return shown, played.outcome


def python(code: str) -> PlannedCall:
    return PlannedCall(name="python", arguments={"code": code})


def sql(query: str) -> PlannedCall:
    return PlannedCall(name="sql", arguments={"query": query})


TASK = "code/train/1/1"
QUESTION = build_question(split="train", level=1, seed=1)
COLUMN, TABLE, ANSWER = QUESTION.measure.column, QUESTION.measure.table, QUESTION.answer
(SOLVING,) = solving_calls(QUESTION)


async def test_a_worked_question():
    shown, outcome = await episode(TASK, SOLVING, f"[ANSWER] {ANSWER}")
    assert shown == [(f'{{"output":"{ANSWER}"}}', None, ("needed", "first"))]
    assert outcome == 1.0


async def test_another_way_to_the_answer_counts_as_well():
    where = QUESTION.measure
    code = (
        f"import csv; picked = [int(r['{COLUMN}']) for r in csv.DictReader(open('{TABLE}.csv')) "
        f"if r['{where.label}'] == '{where.value}']"
    )
    shown, outcome = await episode(
        TASK, python(code), python(f"print('It is', {where.function}(picked), '.')"), f"[ANSWER] {ANSWER}"
    )
    assert [tags for _, _, tags in shown] == [("first",), ("needed", "first")]
    assert outcome == 1.0


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [python(f"print({ANSWER})")],
        [sql(f"SELECT {ANSWER}")],
        [python(f"{COLUMN} = {ANSWER}; print({COLUMN})")],
        [python(f"print('{COLUMN}', *range({LARGEST}))")],
        [sql(f"SELECT {COLUMN}, * FROM {TABLE}")],
        [python(f"print('{COLUMN}', {ANSWER - 1} + 1) if False else 1")],
        [python(f"raise ValueError('{COLUMN}', {ANSWER - 1} + 1)")],
        [python(f"# {COLUMN}\nprint({ANSWER - 1} + 1)")],
        [python(f"{COLUMN} = range({ANSWER - 3}, {ANSWER + 3}); print(*{COLUMN})")],
        [python(f"print({ANSWER}, {2 * ANSWER}, {3 * ANSWER}, '{COLUMN}')")],
        [sql(f"SELECT {ANSWER - 1} + 1 AS {COLUMN}")],
        [sql(f"SELECT {COLUMN} FROM {TABLE}"), python(f"guess = {ANSWER}"), python("print(guess)")],
        [sql(f"SELECT {COLUMN} FROM {TABLE}")],
    ],
    ids=[
        *("no call", "printed", "selected", "named and printed", "every number", "every row", "nothing printed", "in an error"),
        *("calculated", "a range", "multiples", "calculated in SQL", "remembered", "the whole column"),
    ],
)
async def test_an_answer_that_no_call_computed_counts_nothing(calls):
    assert (await episode(TASK, *calls, f"[ANSWER] {ANSWER}"))[1] == 0.0


async def test_another_number_counts_nothing():
    for wrong in (str(ANSWER + 1), f"{ANSWER}.0", f"{ANSWER} {ANSWER}", f"0{ANSWER}", ""):
        assert (await episode(TASK, SOLVING, f"[ANSWER] {wrong}"))[1] == 0.0


async def test_failed_code_is_a_structured_error_and_the_episode_goes_on():
    shown, outcome = await episode(
        TASK,
        python("rows"),
        sql("SELECT x FROM y"),
        python("import os; kept = 1; os._exit(1)"),
        python("kept"),
        python("while True: pass"),
        python("x = 'x' * 10 ** 9"),
        SOLVING,
        f"[ANSWER] {ANSWER}",
    )
    wrong = ("irrelevant", "first")
    assert shown == [
        ('{"error":"NameError: name \'rows\' is not defined, line 1"}', "tool", wrong),
        ('{"error":"OperationalError: no such table: y"}', "tool", wrong),
        ('{"error":"crashed, variables are gone"}', "crash", wrong),
        ('{"error":"NameError: name \'kept\' is not defined, line 1"}', "tool", wrong),
        ('{"error":"ran too long, variables are gone"}', "overtime", wrong),
        ('{"error":"out of memory"}', "memory", wrong),
        (f'{{"output":"{ANSWER}"}}', None, ("needed", "first")),
    ]
    assert outcome == 1.0


async def test_a_restored_episode_has_its_variables_again():
    env, copy = CALM.make_env(), CALM.make_env()
    task = CALM.get(TASK)
    for each in (env, copy):
        await each.reset(task, rollout_seed=0)
    await env.step(CALM.format.render([python("x = [1]")]))
    await env.step(CALM.format.render([python("x.append(2)")]))
    copy.restore(env.snapshot())
    assert (await copy.step(CALM.format.render([python("print(x)")]))).messages[0].content == '{"output":"[1, 2]"}'
    copy.restore(env.snapshot())
    assert (await copy.step(CALM.format.render([python("x.append(3); print(x)")]))).messages[
        0
    ].content == '{"output":"[1, 2, 3]"}'
    for each in (env, copy):
        await each.close()


async def test_the_shell_is_given_on_request():
    source = load_source(EnvSection(name="code", levels=(1,), transient_failure_rate=0.0, sandbox=SandboxSection(shell=True)))
    assert [spec.name for spec in CALM.tools()] == ["python", "sql"]
    assert [spec.name for spec in source.tools()] == ["python", "sql", "shell"]
    env = source.make_env()
    await env.reset(source.get(TASK), rollout_seed=0)
    call = PlannedCall(name="shell", arguments={"command": f"head -n 1 {TABLE}.csv"})
    step = await env.step(source.format.render([call]))
    assert step.messages[0].content == f'{{"output":"{",".join(QUESTION.tables[TABLE].columns)}"}}'
    await env.close()


async def test_a_long_output_says_that_it_is_cut():
    source = load_source(
        EnvSection(name="code", levels=(1,), transient_failure_rate=0.0, sandbox=SandboxSection(output_bytes=64))
    )
    env = source.make_env()
    await env.reset(source.get(TASK), rollout_seed=0)
    step = await env.step(source.format.render([python("print('ab' * 99)")]))
    assert step.messages[0].content == f'{{"output":"{"ab" * 32}","truncated":true}}'
    await env.close()


def test_sandbox_settings_are_refused_where_no_code_runs():
    for name in ("data", "research", "trip"):
        with pytest.raises(ConfigError, match=rf"env\.sandbox: family '{name}' runs no code"):
            load_source(EnvSection(name=name, levels=(1,), sandbox=SandboxSection(cpu_s=2.0)))


def test_prompts_state_the_question():
    said = {
        "train/1": "What is the min of cost in lessons where color is blue?",
        "train/2": "What is the sum of speed in visits where height is above 16 and day is monday?",
        "train/3": "What is the max minus min of delay in orders where color is green?",
        "train/4": "What is the largest sum of rank in visits for any color?",
        "train/5": "What is the max of rank for people whose team is wolves?",
        "deep/6": "What is the largest sum of height for any branch of people?",
        "deep/7": "What is the largest min of profit where length is above 18 for any branch of people?",
    }
    assert {task: CALM.get(f"code/{task}/1").messages[0].content for task in said} == said


def test_tasks_are_many():
    rng = random.Random(0)
    tasks = [CALM.sample(rng, split="train", level=level) for level in (1, 5) for _ in range(100)]
    assert len({task.messages[0].content for task in tasks}) > 150
