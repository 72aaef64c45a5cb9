"""From env.name to a source, and from a task id back to its task."""

from __future__ import annotations

import pickle
import random

import pytest

from cacherl.config import EnvSection
from cacherl.errors import ConfigError
from envs.registry import load_source
from envs.vocabulary import split_words

SOURCE = load_source(EnvSection())


def test_a_dotted_path_names_a_factory(tmp_path, monkeypatch):
    (tmp_path / "my_env.py").write_text(
        "from envs.research.family import ResearchFamily\n"
        "from envs.source import SimulatedSource\n"
        "def mine(section):\n"
        "    return SimulatedSource(ResearchFamily(), section)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = load_source(EnvSection(name="my_env:mine"))
    assert source.get("research/val/1/7") == SOURCE.get("research/val/1/7")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reserch", r"env\.name must be one of agentdojo, bfcl, code, data, research, trip or.*got 'reserch'"),
        ("no_such_package.env:Mine", r"env\.name 'no_such_package\.env:Mine' cannot be loaded: No module named"),
        ("envs.registry:Mine", r"env\.name 'envs\.registry:Mine' cannot be loaded: .*no attribute 'Mine'"),
    ],
)
def test_a_wrong_name_is_explained(name, message):
    with pytest.raises(ConfigError, match=message):
        load_source(EnvSection(name=name))


def test_a_level_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"env\.levels: family 'research' has levels \[1, 2, 3\], got \[9\]"):
        load_source(EnvSection(levels=(1, 9)))


def test_an_id_leads_back_to_its_task():
    task = SOURCE.sample(random.Random(1), split="val", level=2)
    assert task.task_id == f"research/val/2/{task.seed}"
    assert SOURCE.get(task.task_id) == task == pickle.loads(pickle.dumps(task))


@pytest.mark.parametrize(
    "task_id", ["research/val/2", "research/val/9/1", "research/test/1/1", "trip/val/1/1", "research/val/x/1"]
)
def test_a_foreign_id_is_refused(task_id):
    with pytest.raises(ValueError, match=task_id):
        SOURCE.get(task_id)


def test_the_vocabulary_is_small_distinct_and_made_of_runs():
    pieces = list(SOURCE.vocabulary())
    assert len(pieces) == len(set(pieces)) < 420
    for piece in pieces:
        assert list(split_words(piece, SOURCE.tags())) == [piece]
    assert not set(SOURCE.tags()) & set(pieces)


def test_text_is_cut_into_tags_words_and_separators():
    text = '[TOOL_CALL] read {"id":"d1"} [/TOOL_CALL]'
    assert list(split_words(text, SOURCE.tags())) == [
        "[TOOL_CALL]", " ", "read", ' {"', "id", '":"', "d1", '"} ', "[/TOOL_CALL]"
    ]  # fmt: skip
