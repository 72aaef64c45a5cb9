"""The `cacherl` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cacherl.config import RunConfig, load_config
from cacherl.errors import CacheRLError, ConfigError
from deploy.config_text import annotated
from deploy.env_cli import app as env_app
from deploy.replay_cli import app as replay_app
from deploy.run_config import config_of
from deploy.run_record import CONFIG_FILE, run_file
from deploy.tune_cli import tune
from envs.preflight import ready_source

app = typer.Typer(help="Reinforcement learning of tool-calling agents with durable, prioritized replay.", no_args_is_help=True)
app.add_typer(env_app, name="env")
app.add_typer(replay_app, name="replay")

ConfigPath = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; without it every key has its default.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides such as learner.lr=1e-4; `cacherl config` explains every key.", metavar="[KEY=VALUE]..."),
]


@app.callback()
def _start() -> None:
    # A module of the user's is looked for in the current folder too, as `python -m` would; last, so that it hides nothing.
    sys.path.append(str(Path.cwd()))


@app.command()
def train(
    config: ConfigPath = None,
    env: Annotated[
        str | None, typer.Option(help="The environment, short for env.name=...; 'package.module:Name' for yours.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Run the loop: actors, replay service and learner, until run.updates."""
    _train(load_config(config, [*(overrides or ()), *([f"env.name={env}"] if env else ())]))


@app.command()
def resume(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run that was killed, or ended, such as runs/demo.")],
    overrides: Overrides = None,
) -> None:
    """Go on with a run from its newest checkpoint, with its own config and what may be changed of it."""
    place = [f"run.dir={run_dir.resolve().parent}", f"run.name={run_dir.resolve().name}", "run.if_exists=resume"]
    otherwise = "give others (KEY=VALUE), or begin a new run from a checkpoint's policy (model.path=…/step-…/policy)"
    _train(config_of(run_dir, [*(overrides or ()), *place], otherwise=otherwise))


app.command()(tune)


def _train(settings: RunConfig) -> None:
    ready_source(settings.env)  # a broken one is refused here, before the libraries of the run take seconds to load
    from deploy.launch import run_training

    summary, report = run_training(settings)
    console = Console()
    if summary.held_out_start is not None and summary.held_out_end is not None:
        console.print(
            f"held-out success {summary.held_out_start:.3f} -> {summary.held_out_end:.3f} "
            f"({settings.eval.tasks} unseen tasks, greedy) after {summary.updates} updates, {summary.episodes:,} episodes, "
            f"{summary.elapsed_s:.0f} s",
            highlight=False,
        )
    console.print(f"report: {report}", highlight=False, soft_wrap=True)
    if summary.status != "succeeded":
        Console(stderr=True).print(f"{summary.status}: {summary.error}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130 if summary.status == "interrupted" else 1)


@app.command("config")
def show_config(config: ConfigPath = None, overrides: Overrides = None) -> None:
    """Print the complete configuration: every key with its value and meaning, as a file for --config."""
    typer.echo(annotated(load_config(config, overrides or ())), nl=False)


@app.command()
def report(run_dir: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/demo.")]) -> None:
    """Write report.html of a run anew."""
    from deploy.report import write_report

    run_file(run_dir, CONFIG_FILE)
    typer.echo(str(write_report(run_dir)))


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A run's folder (its newest checkpoint), or one of its checkpoints.")],
    target: Annotated[Path, typer.Argument(help="Folder to make.")],
    best: Annotated[bool, typer.Option(help="Of a run, the checkpoint with the highest held-out success.")] = False,
) -> None:
    """Write the policy of a checkpoint as a Hugging Face folder, for transformers, vLLM, or model.path."""
    from deploy.export import export_policy

    checkpoint = export_policy(source, target, best=best)
    typer.echo(f"{target}: the policy of version {checkpoint.version}")


def main() -> None:
    """Entry point: an error of ours ends as one message, not as a traceback."""
    try:
        app()
    except CacheRLError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
