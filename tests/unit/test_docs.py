"""What the documentation names exists: files, links, config keys, metrics, commands and their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from cacherl.config import RunConfig, load_config
from cacherl.metrics import lookup
from deploy.cli import app

PROJECT = Path(__file__).parents[2]
DOCS = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]
FOLDERS = "actors|benchmarks|cacherl|deploy|docs|envs|learner|replay_service|rewards|tests"
TREE = RunConfig().model_dump(mode="json")
#: First parts of metrics' names.
METRICS = (
    "alarm|checkpoint|curriculum|eval|exploration|governor|learner|replay|reward|reward_batch|reward_weight|"
    "rollout|time|tool_cache"
)
#: Code that reads like a key: the pool's methods in examples and diagrams.
NO_KEYS = {"replay.sample", "replay.ack", "learner.group"}

each_page = pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)


def keys(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")


def anchors(page: Path) -> set[str]:
    """The ids that a forge gives to headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> list[list[str]]:
    """Every line of a console block that runs `cacherl`, as words, without `cacherl` itself."""
    blocks = [block for page in DOCS for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    words = [shlex.split(line[2:], comments=True) for line in lines]
    found = [(line, next((n for n, word in enumerate(line) if Path(word).name == "cacherl"), None)) for line in words]
    return [line[at + 1 :] for line, at in found if at is not None]


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@each_page
def test_files_exist(page: Path) -> None:
    for path in re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./*-]*)", page.read_text()):
        if Path(path).suffix or path.endswith("/"):
            assert list(PROJECT.glob(path.rstrip("."))), path


@each_page
def test_config_keys_exist(page: Path) -> None:
    known = set(keys(TREE))
    for key in re.findall(rf"(?<![\w./-])((?:{'|'.join(TREE)})(?:\.[a-z_]+)+)\b", page.read_text()):
        file = Path(key).suffix in (".py", ".md", ".jsonl", ".json", ".yaml", ".html")
        assert file or key in known or key in NO_KEYS or key.startswith("env.settings."), key


@each_page
def test_metrics_are_declared(page: Path) -> None:
    for name in re.findall(rf"`((?:{METRICS})/[a-z_]+(?:/[\w<>*]+)*)`", page.read_text()):
        lookup(name)


def test_every_section_of_the_config_is_in_the_table() -> None:
    table = (PROJECT / "docs" / "architecture.md").read_text().split("## Configuration")[1].split("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(TREE)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_parse(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    context = click.Context(command)
    while hasattr(command, "get_command"):
        command, words = command.get_command(context, words[0]), words[1:]
        assert command is not None
    context = command.make_context("cacherl", words)
    config = context.params.get("config")
    ours = config is not None and config.parts[0] == "deploy"  # not one that the reader is to write
    load_config(PROJECT / config if ours else None, context.params.get("overrides") or ())
