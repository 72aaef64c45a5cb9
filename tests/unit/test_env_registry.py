"""From env.name to a source, and from a task id back to its task."""

from __future__ import annotations

import pickle
import random
import sys

import pytest

from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from envs.dotted import module_roots, own_sources
from envs.registry import build_source, load_source, training_levels
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
        ("reserch", r"env\.name must be one of .*research, .* or a path .*got 'reserch'"),
        (
            "no_such_package.env:Mine",
            r"env\.name 'no_such_package\.env:Mine': no module named 'no_such_package' in /.* or on PYTHONPATH; run from the "
            r"folder that holds no_such_package\.py or no_such_package/",
        ),
        ("envs.registri:Mine", r"no module named 'envs\.registri'"),
        ("envs.registry:load_sauce", r"/envs/registry\.py has no class or function 'load_sauce'; it has \['load_source'"),
        ("envs.registry:FAMILIES", r"has no class or function 'FAMILIES'"),
    ],
)
def test_a_wrong_name_is_explained(name, message):
    with pytest.raises(ConfigError, match=message):
        load_source(EnvSection(name=name))


def test_a_level_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"env\.levels: 'research' has levels \[1, 2, 3\] in split 'train', .*got \[9\]"):
        load_source(EnvSection(levels=(1, 9)))


OWN = """
import random
from envs.base import Solution
from envs.research.family import ResearchFamily
from envs.source import SimulatedSource

class Small(ResearchFamily):
    def __init__(self, *, size: int, label: str = "a"):
        if size > 9:
            raise ValueError("size must be at most 9")
        self.size = size
    def levels(self, split):
        return {"train": (1, 2), "val": (1,)}.get(split, ())

class Mute(ResearchFamily):
    texts = None
    def build(self, split, level):
        ...
    @property
    def name(self):
        raise AttributeError("name")

class Half:
    def __init__(self, section):
        self.family = "half"
    def make_env(self):
        ...

def source(section, *, size: int = 3):
    source = SimulatedSource(Small(size=size), section)
    source.size = size
    return source

def nothing(section):
    return None

def untrained(section):
    source = SimulatedSource(Small(size=1), section)
    source.levels = lambda split: ()
    return source
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A function from a name in the module OWN to a section."""
    module = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(OWN)
    (tmp_path / "faulty.py").write_text("import no_such_dependency\n")
    (tmp_path / "crashing.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name, **section: EnvSection(name=f"{module}:{name}", **section)


def test_a_level_that_cannot_be_evaluated_is_refused(own):
    with pytest.raises(ConfigError, match=r"has levels \[1\] in split 'val', which is evaluated on, got \[2\]"):
        load_source(own("Small", settings={"size": 1}))
    source = load_source(own("Small", settings={"size": 1}, levels=(1,)))
    assert training_levels(source, own("Small", levels=(1,))) == (1,)
    assert training_levels(source, own("Small")) == (1, 2)


def test_an_environment_without_training_tasks_is_refused(own):
    with pytest.raises(ConfigError, match="no levels in split 'train', so there is nothing to train on"):
        load_source(own("untrained"))


def test_a_family_class_and_a_factory_take_their_settings(own):
    assert build_source(own("Small", settings={"size": 4})).get("research/val/1/7") == SOURCE.get("research/val/1/7")
    assert build_source(own("source", settings={"size": "7"})).size == 7
    assert build_source(own("source")).size == 3


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Small", {}, r"env\.settings\.size: the environment needs this setting"),
        ("Small", {"size": "x"}, r"env\.settings\.size: Input should be a valid integer.*\(got 'x'\)"),
        ("Small", {"size": 1, "sise": 2}, r"env\.settings\.sise: the environment has no such setting; it has size, label"),
        ("Small", {"size": 10}, r"with env\.settings \{'size': 10\}: ValueError: size must be at most 9"),
        ("source", {"sise": 2}, r"env\.settings\.sise: the environment has no such setting; it has size"),
        ("nothing", {"size": 2}, r"env\.settings\.size: the environment has no such setting; it has none"),
    ],
)
def test_settings_are_validated_by_the_environment(own, name, settings, message):
    with pytest.raises(ConfigError, match=message):
        build_source(own(name, settings=settings))


@pytest.mark.parametrize("parameters", ["path: 'Nowhere' = ''", "size: 5 = 5"])
def test_parameters_that_cannot_be_settings_are_explained(tmp_path, monkeypatch, parameters):
    (tmp_path / "odd_env.py").write_text(f"class Odd:\n    def __init__(self, *, {parameters}):\n        pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_env", raising=False)
    with pytest.raises(ConfigError, match=r"(?s)env\.settings: the parameters of Odd cannot be settings: .*; give each a"):
        build_source(EnvSection(name="odd_env:Odd"))


def test_the_projects_families_refuse_settings_that_they_do_not_have():
    with pytest.raises(ConfigError, match=r"env\.settings\.size: the environment has no such setting"):
        load_source(EnvSection(name="trip", settings={"size": 3}))


def test_what_a_class_lacks_is_named(own):
    with pytest.raises(ConfigError) as refused:
        build_source(own("Mute"))
    for part in (
        "Mute is no Family",
        "it lacks the attribute name",
        "build(split, level) must take build(*, split: str, level: int, seed: int) -> Scenario",
        "texts must be the method texts() -> Iterable[str]",
        "'Write your own environment' in docs/environments.md",
    ):
        assert part in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        build_source(own("Half"))
    assert "Half is no TaskSource: it lacks the attribute format; it lacks the method tools()" in str(refused.value)
    assert "make_env" not in str(refused.value)
    with pytest.raises(ConfigError, match="NoneType is no TaskSource"):
        build_source(own("nothing"))


def test_a_module_that_cannot_be_imported_is_told_from_one_that_is_not_there(own):
    with pytest.raises(ConfigError, match="faulty imports 'no_such_dependency', which is not installed"):
        load_source(EnvSection(name="faulty:Mine"))
    with pytest.raises(ConfigError, match="importing crashing raised ZeroDivisionError: division by zero"):
        load_source(EnvSection(name="crashing:Mine"))


def test_where_an_environment_comes_from(own, tmp_path):
    package = tmp_path / "house" / "doors"
    package.mkdir(parents=True)
    (tmp_path / "house" / "__init__.py").touch()
    (tmp_path / "yard" / "gates").mkdir(parents=True)
    name = own("Small").name
    file = tmp_path / f"{name.partition(':')[0]}.py"
    assert module_roots(name) == [file]
    assert module_roots("house.doors:Doors") == [tmp_path / "house"]
    assert module_roots("yard.gates:Gates") == [tmp_path / "yard"]
    assert module_roots("trip") == []
    assert module_roots(f"trip*2+{name}+house.doors:Doors") == [file, tmp_path / "house"]
    (package / "deep.py").touch()
    assert own_sources("house.doors:Doors") == [tmp_path / "house" / "__init__.py", package / "deep.py"]
    assert own_sources(name) == [file]
    assert own_sources("trip") == []


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
