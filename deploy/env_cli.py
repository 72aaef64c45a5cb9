"""`cacherl env`: environments without a model: which there are, whether one keeps its promises, how it feels to act in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cacherl.config import RunConfig, load_config
from cacherl.environment_settings import EnvSection
from cacherl.errors import ConfigError
from envs.check import CHECKS, Finding, check_source
from envs.registry import FAMILIES, SUITES, build_source

app = typer.Typer(help="Try environments without a model: list, check, play.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A family, or 'package.module:Name' of your own.")]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="A run's YAML, for its env and reward sections.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Overrides such as env.settings.size=3", metavar="[KEY=VALUE]...")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SPLITS = ("train", "val", "comp", "deep")


@app.command("list")
def list_families(as_json: AsJson = False) -> None:
    """The project's families and public suites, with their levels and tools."""
    rows = [_describe(name) for name in (*FAMILIES, *SUITES)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("env.name", "levels", "tools")
    for row in rows:
        levels = ", ".join(f"{split} {_span(levels)}" for split, levels in row["levels"].items())
        table.add_row(row["name"], row.get("unavailable") or levels, ", ".join(row["tools"]))
    console = Console()
    console.print(table)
    console.print("Your own: env.name=package.module:Name, see docs/environments.md", highlight=False, markup=False)


@app.command()
def check(
    name: Name,
    overrides: Overrides = None,
    config: Config = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of each split and level.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Fixes which tasks.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Play episodes without a model and say which promises the environment breaks. Exit status 1: some."""
    section = _config(name, config, overrides).env
    source = build_source(section)
    console = Console()
    if not as_json:
        console.print(f"{section.name}: {len(CHECKS)} checks, {tasks} tasks of each split and level", highlight=False)
    on_finding = (lambda finding: None) if as_json else (lambda finding: _show(console, finding))
    findings = asyncio.run(check_source(source, tasks=tasks, seed=seed, section=section, on_finding=on_finding))
    failed = [finding for finding in findings if finding.problem is not None]
    if as_json:
        typer.echo(json.dumps({"env": section.name, "passed": not failed, "findings": [asdict(one) for one in findings]}))
    else:
        verdict = f"[bold red]{len(failed)} broken[/bold red]" if failed else "[bold green]all kept[/bold green]"
        console.print(f"{len(findings)} promises: {verdict}", highlight=False)
    if failed:
        raise typer.Exit(1)


@app.command()
def play(
    name: Name,
    overrides: Overrides = None,
    config: Config = None,
    split: Annotated[str, typer.Option(help="train, val, comp or deep.")] = "train",
    level: Annotated[int | None, typer.Option(help="Difficulty; by default the easiest.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the task and the tools' noise.")] = 0,
    task: Annotated[str | None, typer.Option(help="A task's id, instead of split, level and seed.")] = None,
) -> None:
    """Act in an environment yourself."""
    from actors.scoring import composer_of
    from deploy.env_play import Play

    settings = _config(name, config, overrides)
    source = build_source(settings.env)
    try:
        levels = source.levels(split)
        if task is None and not levels:
            raise ValueError(f"--split: {source.family!r} has no split {split!r}")
        chosen = (
            source.sample(random.Random(seed), split=split, level=levels[0] if level is None else level)
            if task is None
            else source.get(task)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    session = Play(
        source=source,
        scorer=composer_of(settings, source),
        console=Console(),
        read=_line,
        max_turns=settings.env.max_turns,
    )
    asyncio.run(session.run(chosen, rollout_seed=seed))


def _config(name: str, config: Path | None, overrides: list[str] | None) -> RunConfig:
    return load_config(config, [*(overrides or ()), f"env.name={name}"])


def _describe(name: str) -> dict[str, Any]:
    try:
        source = build_source(EnvSection(name=name))
    except ConfigError as error:  # an optional extra that is not installed
        return {"name": name, "levels": {}, "tools": [], "unavailable": str(error)}
    levels = {split: list(source.levels(split)) for split in _SPLITS if source.levels(split)}
    return {"name": name, "levels": levels, "tools": [spec.name for spec in source.tools()]}


def _span(levels: list[int]) -> str:
    run = levels == list(range(levels[0], levels[-1] + 1)) and len(levels) > 1
    return f"{levels[0]}-{levels[-1]}" if run else ",".join(map(str, levels))


def _show(console: Console, finding: Finding) -> None:
    if finding.problem is None:
        console.print(f"  [green]kept[/green]    {finding.check}", highlight=False)
        return
    console.print(f"  [bold red]broken  {finding.check}[/bold red]: {escape(finding.problem)}", highlight=False, soft_wrap=True)
    console.print(f"          which means: {escape(finding.meaning)}", highlight=False, soft_wrap=True)
    console.print(f"          what to do:  {escape(finding.remedy)}", highlight=False, soft_wrap=True)


def _line() -> str | None:
    """A typed line; None at the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives `input` its line editing
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
