"""`paceline models`: fetch small models without a model hub."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.cli.failure import clear_errors
from paceline.engines.install import engine_python, installed
from paceline.errors import ModelError
from paceline.models.catalog import CATALOG, model_dir, models_dir
from paceline.models.fetch import Stage, fetch_model, find

app = typer.Typer(help="Fetch small models without a model hub.", no_args_is_help=True)

STAGES: dict[Stage, str] = {
    "download": "downloading",
    "check": "checking the digest",
    "convert": "converting (about a minute)",
}


@app.command(name="list")
def list_models() -> None:
    """Show the models that can be fetched, and which are here."""
    table = Table("name", "model", "download", "on disk", "licence", "here")
    table.columns[0].no_wrap = True
    for model in CATALOG.values():
        table.add_row(
            model.name,
            model.title,
            f"{model.size_bytes / 1e6:.0f} MB",
            f"{model.converted_gib:g} GiB",
            model.licence,
            "yes" if model_dir(model.name).is_dir() else "no",
        )
    out = Console(highlight=False, soft_wrap=True)
    out.print(table, soft_wrap=False)
    out.print(f"Folder: {models_dir()}")
    out.print("The weights come from 4-bit files: answers differ from those of the publisher's full weights.")


@app.command()
@clear_errors
def fetch(
    name: Annotated[str, typer.Argument(help="A name that `paceline models list` shows.")],
    converter: Annotated[
        str,
        typer.Option(
            "--engine-python", help="Python of the engine venv that converts. Default: the installed one."
        ),
    ] = "",
) -> None:
    """Download, check and convert a model. Interrupted, it goes on where it stopped; done, it does nothing."""
    begin, out = time.monotonic(), Console(highlight=False, soft_wrap=True)
    model = find(name)
    if model_dir(name).is_dir():
        out.print(f"{model_dir(name)} (fetched before)")
        return
    python = engine_python("cuda" if installed("cuda") and not installed("cpu") else "cpu", converter)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out) as bar:
        task = bar.add_task(name, total=model.size_bytes)

        def report(stage: Stage, done: int, total: int) -> None:
            bar.update(task, description=f"{name}: {STAGES[stage]}", completed=done, total=total)

        folder = fetch_model(model, python, report)
    out.print(f"{folder} ({time.monotonic() - begin:.0f} s)")


@app.command()
@clear_errors
def path(name: Annotated[str, typer.Argument(help="A name that `paceline models list` shows.")]) -> None:
    """Print the folder of a fetched model."""
    folder = model_dir(find(name).name)
    if not folder.is_dir():
        raise ModelError(f"{name} has not been fetched; run `paceline models fetch {name}`", model=name)
    typer.echo(folder)
