"""`cacherl replay`: look into a pool in use, move it, and delete it."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from cacherl.config import load_config
from cacherl.errors import ConfigError
from cacherl.replay_settings import ReplaySettings
from cacherl.trajectory import TrajectoryGroup
from deploy.run_config import config_of
from deploy.run_dir import held, read_identity
from replay_service.archive import export_pool, import_pool
from replay_service.contents import GroupInfo
from replay_service.server import serving
from replay_service.store import Replay

app = typer.Typer(help="Look into a replay pool, also one in use, move it, and delete it.", no_args_is_help=True)

Run = Annotated[
    Path | None,
    typer.Option("--run", "-r", help="The pool of this run's folder; an embedded server that has ended runs for the command."),
]
Pool = Annotated[str | None, typer.Option("--namespace", "-n", help="The pool by name: replay.namespace of the run.")]
Url = Annotated[
    str | None, typer.Option("--url", help="redis:// or rediss:// URL; by default CACHERL_REPLAY_URL, then the config's.")
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="The run's YAML, for credentials, shards and the rules of import.")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Overrides such as reward.tool_use=0.02", metavar="[KEY=VALUE]...")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_console = Console()


@app.command()
def stats(run: Run = None, namespace: Pool = None, url: Url = None, config: Config = None, as_json: AsJson = False) -> None:
    """Counters, and distributions of priority, age, size, staleness and uses."""
    with _pool(run, namespace, url, config) as pool:
        counters = dataclasses.asdict(pool.stats())
        profile = dataclasses.asdict(pool.profile())
    if as_json:
        typer.echo(json.dumps({**counters, "profile": profile}))
        return
    named = {**counters, **{f"profile/{name}": value for name, value in profile.items()}}
    _print_table(("counter", "value"), ((name, _shown(value)) for name, value in named.items()))


@app.command("list")
def list_groups(
    run: Run = None,
    namespace: Pool = None,
    url: Url = None,
    config: Config = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """The groups, one a line."""
    with _pool(run, namespace, url, config) as pool:
        infos = sorted(pool.entries(), key=lambda info: -info.sequence)[:limit]
    if as_json:
        for info in infos:
            typer.echo(json.dumps(dataclasses.asdict(info)))
        return
    columns = ("group_id", "task_id", "priority", "version", "trajectories", "successes", "tokens", "uses", "leases")
    _print_table(columns, ([_shown(getattr(info, column)) for column in columns] for info in infos))


@app.command()
def show(
    group_id: Annotated[str, typer.Argument(help="As `list` prints it.")],
    run: Run = None,
    namespace: Pool = None,
    url: Url = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """One group: its trajectories turn by turn."""
    with _pool(run, namespace, url, config) as pool:
        group = pool.get(group_id)
    if group is None:
        raise ConfigError(f"pool {str(run or namespace)!r} holds no group {group_id!r}; see `cacherl replay list`")
    if as_json:
        typer.echo(json.dumps(_plain(group)))
        return
    for member in group.trajectories:
        who = f"{member.source}, " if member.foreign else ""
        facts = f"{who}{member.status.kind}, outcome {member.outcome:g}, return {member.total_reward:g}"
        _console.rule(Text(_printable(f"{member.trajectory_id}: {facts}")))
        for turn in member.turns:
            _console.print(_printable(turn.text), style="bold", markup=False, highlight=False)
            _console.print(f"  reward: {_parts(turn.rewards)}", markup=False, highlight=False)
            for message in turn.messages:
                text = _printable(f"  {message.name or message.role}: {message.content}")
                _console.print(text, markup=False, highlight=False)
        _console.print(f"in the end: {_parts(member.rewards)}", markup=False, highlight=False)


@app.command("export")
def export_(
    path: Annotated[Path, typer.Argument(help="File to write.")],
    run: Run = None,
    namespace: Pool = None,
    url: Url = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write all groups to a file that `import` can load; damaged ones are left out and counted."""
    with _pool(run, namespace, url, config) as pool, _progress("exporting", quiet=as_json) as report:
        result = export_pool(pool, path, progress=report)
    _say(as_json, {**dataclasses.asdict(result), "path": str(path)})


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="File that `export` wrote.", exists=True, dir_okay=False)],
    run: Run = None,
    namespace: Pool = None,
    url: Url = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Load a file's groups into a pool; without --config the pool must exist, with it, it is made by the config's rules."""
    with _pool(run, namespace, url, config, join=config is None) as pool, _progress("importing", quiet=as_json) as report:
        result = import_pool(pool, path, progress=report)
    _say(as_json, dataclasses.asdict(result))


@app.command()
def prune(
    run: Run = None,
    namespace: Pool = None,
    url: Url = None,
    config: Config = None,
    before_version: Annotated[int | None, typer.Option(help="Groups with a token of an older policy version.")] = None,
    below_priority: Annotated[float | None, typer.Option(help="Groups of a lower priority.")] = None,
    older_than_s: Annotated[float | None, typer.Option(help="Groups pushed longer ago, in seconds.")] = None,
    used: Annotated[int | None, typer.Option(help="Groups sampled at least so often.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only count.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the groups that meet every condition given."""
    limits = (before_version, below_priority, older_than_s, used)
    if all(limit is None for limit in limits):
        raise ConfigError("prune needs at least one of --before-version, --below-priority, --older-than-s, --used")
    now = time.time()

    def doomed(info: GroupInfo) -> bool:
        return (
            (before_version is None or info.version < before_version)
            and (below_priority is None or info.priority < below_priority)
            and (older_than_s is None or now - info.pushed_at > older_than_s)
            and (used is None or info.uses >= used)
        )

    with _pool(run, namespace, url, config) as pool:
        chosen = [info.group_id for info in pool.entries() if doomed(info)]
        removed = 0 if dry_run else pool.prune(chosen)
    _say(as_json, {"matched": len(chosen), "removed": removed})


@app.command()
def rescore(
    config: Annotated[Path, typer.Option("--config", "-c", help="YAML with the new reward; also credentials and shards.")],
    run: Run = None,
    namespace: Pool = None,
    url: Url = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Give every group the rewards and the priority that the config's reward would have given it.

    Group by group and all or nothing for each; interrupted, it goes on where it stopped when it is started again.
    """
    from deploy.rescore import rescore_pool, rescore_run

    settings = load_config(config, overrides or ())
    with _pool(run, namespace, url, config) as pool, _progress("re-scoring", quiet=as_json) as progress:
        if run is None:
            result = rescore_pool(pool, settings, progress=progress)
        else:
            with held(run) as alone:
                result = rescore_run(run, pool, settings, alone=alone, progress=progress)
    _say(as_json, dataclasses.asdict(result))


@app.command()
def clear(
    run: Run = None,
    namespace: Pool = None,
    url: Url = None,
    config: Config = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, delete it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a whole pool that nobody uses any more, and nothing else on the server."""
    with _pool(run, namespace, url, config) as pool:
        groups = len(pool)
        if not yes:
            raise ConfigError(
                f"this deletes pool {str(run or namespace)!r} with its {groups} groups for good: confirm with --yes"
            )
        keys = pool.clear()
    _say(as_json, {"groups": groups, "keys": keys})


@contextmanager
def _pool(
    run: Path | None, namespace: str | None, url: str | None, config: Path | None, *, join: bool = True
) -> Iterator[Replay]:
    if (run is None) == (namespace is None):
        raise ConfigError("which pool: give either --run FOLDER or --namespace NAME")
    if run is None:
        settings = load_config(config).replay if config is not None else ReplaySettings()
        address: AbstractContextManager[str | None] = nullcontext(url or os.environ.get("CACHERL_REPLAY_URL") or settings.url)
    else:
        if url:
            raise ConfigError("--run knows its server: leave out --url")
        whole = load_config(config) if config is not None else config_of(run, otherwise="give the pool's rules with --config")
        settings = whole.replay
        namespace = read_identity(run).replay_namespace
        address = nullcontext(settings.url) if settings.url else serving(run / "replay")
    with address as found:
        if found is None:
            raise ConfigError("no replay server: give --url, CACHERL_REPLAY_URL or a config with replay.url")
        with Replay(found, str(namespace), settings, join=join) as pool:
            yield pool


@contextmanager
def _progress(verb: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    with Progress(console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Cells are shown as they are, brackets and all, and folded where the terminal is too narrow."""
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    _console.print(table)


def _say(as_json: bool, facts: dict[str, Any]) -> None:
    typer.echo(json.dumps(facts) if as_json else ", ".join(f"{name} {value}" for name, value in facts.items()))


def _parts(rewards: Mapping[str, float]) -> str:
    """Every part that is not 0."""
    return "  ".join(f"{name} {value:+.4g}" for name, value in rewards.items() if value) or "0"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key:g}: {entry:.4g}" for key, entry in value.items()) or "-"
    return f"{value:.4g}" if isinstance(value, float) else _printable(str(value))


def _printable(text: str) -> str:
    """Lone surrogates, which no terminal takes, as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _plain(group: TrajectoryGroup) -> Any:
    """Of what JSON can carry: arrays as lists."""
    return json.loads(json.dumps(dataclasses.asdict(group), default=lambda value: value.tolist()))
