"""`cacherl tune`: search for the weights, or any other settings, that make a run do best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from cacherl.errors import ConfigError
from deploy.terminal import log_to, own_terminal
from deploy.tuning.ledger import Trial
from deploy.tuning.results import best, shown, table, train_command, write_json
from deploy.tuning.settings import Search, check_search, load_settings
from deploy.tuning.space import parse_axes

_RECORD = "search.yaml"
#: Settings that may differ when a search is resumed.
_FREE = ("trials", "concurrency")
#: Columns of a table that is not shown in a terminal.
_WIDTH = 160


def tune(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file that every trial starts from.")] = None,
    space: Annotated[Path | None, typer.Option("--space", "-s", help="YAML file of the search.")] = None,
    axis: Annotated[
        list[str] | None, typer.Option("--axis", "-a", help="KEY=[VALUE, ...] or 'KEY={low: .., high: .., log: true}'.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="grid or bayes.")] = None,
    trials: Annotated[int | None, typer.Option(help="Trials of a Bayesian search.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Trials at a time; by default as many as fit.")] = None,
    name: Annotated[str, typer.Option(help="Folder of the search within run.dir.")] = "tune",
    objective: Annotated[
        str | None, typer.Option(help="'package.module:name' of a function of the config to judge by, instead of training.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted search: the same command again.")] = False,
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides for every trial.", metavar="[KEY=VALUE]...")] = None,
) -> None:
    """Search over config keys; each trial is a training run in its own folder."""
    from deploy.tuning.search import run_search

    changes = {"search": search, "trials": trials, "concurrency": concurrency}
    settings = load_settings(space, changes, parse_axes(axis or ()))
    plan = check_search(settings, config=config, overrides=overrides or (), name=name, objective=objective)
    _open_folder(plan, resume)
    log = plan.folder / "logs" / "search.log"
    log_to(log)
    with own_terminal(log) as console:
        found, complete = run_search(plan, console)
    _tell(plan, found, Console() if Console().is_terminal else Console(width=_WIDTH))
    if not complete:
        Console(stderr=True).print("interrupted; give the same command again with --resume to go on", highlight=False)
        raise typer.Exit(130)
    if best(found, settings.mode) is None:
        Console(stderr=True).print("no trial ran to its end; the table says why", highlight=False)
        raise typer.Exit(1)


def _tell(plan: Search, found: list[Trial], console: Console) -> None:
    from deploy.tuning.page import write_page

    console.print(table(plan, found))
    if (top := best(found, plan.settings.mode)) is not None:
        values = ", ".join(f"{key}={shown(value)}" for key, value in top.point.items())
        console.print(f"best: {plan.label} {shown(top.value)} with {values}", markup=False, highlight=False)
        console.print(f"again: {train_command(plan, top)}", markup=False, highlight=False, soft_wrap=True)
    for path in (write_json(plan, found), write_page(plan, found)):
        console.print(str(path), highlight=False, soft_wrap=True)


def _open_folder(plan: Search, resume: bool) -> None:
    """
    Raises:
        ConfigError: there is a search already, or none to resume, or it is another one.
    """
    record = plan.folder / _RECORD
    now = {
        "settings": plan.settings.model_dump(mode="json"),
        "objective": plan.objective,
        "config": plan.base.model_dump(mode="json"),
    }
    if resume and not record.is_file():
        raise ConfigError(f"--resume: {plan.folder} holds no search")
    if not resume and record.is_file():
        raise ConfigError(f"{plan.folder} holds an earlier search: --resume goes on with it, --name takes another folder")
    if resume and (changed := sorted(_differences(yaml.safe_load(record.read_text("utf-8")), now))):
        raise ConfigError(f"--resume: not the search that was interrupted; {', '.join(changed)} changed")
    plan.folder.mkdir(parents=True, exist_ok=True)
    record.write_text(yaml.safe_dump(json.loads(json.dumps(now)), sort_keys=False), encoding="utf-8")


def _differences(before: Any, after: Any, prefix: str = "") -> set[str]:
    """Dotted names of what is not equal, the free settings apart."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = {key for key in before.keys() | after.keys() if not (prefix == "settings" and key in _FREE)}
        return set().union(*(_differences(before.get(key), after.get(key), f"{prefix}.{key}".strip(".")) for key in keys))
    return set() if before == after else {prefix}
