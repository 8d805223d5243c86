"""`paceline models`: fetch small models without a model hub, and check how a model's conversations go on."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.cli.failure import clear_errors
from paceline.engines.install import engine_python, installed
from paceline.errors import ModelError
from paceline.models.catalog import CATALOG, model_dir, models_dir, resolve_model
from paceline.models.fetch import Stage, fetch_model, find
from paceline.transcript import chat

app = typer.Typer(help="Fetch small models, and check chat templates.", no_args_is_help=True)

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


@app.command()
@clear_errors
def check(
    model: Annotated[str, typer.Argument(help="Folder, hub id, or a name that `paceline models list` shows.")],
    template: Annotated[
        Path | None, typer.Option(help="Chat template file that replaces the model's own.")
    ] = None,
    template_arguments: Annotated[
        str, typer.Option(help='Variables for the template, as JSON: {"enable_thinking": false}.')
    ] = "{}",
) -> None:
    """Continue probe conversations by appending, and compare with full renderings.

    equal: both are the same. rewrites: the template would change what was sent; appending keeps it. refused: the
    template does not show such a conversation. unsafe: appending would be wrong, so that the runtime renders every
    step in full; the exit status is then 1.
    """
    loaded = asyncio.run(chat.load(resolve_model(model), template, _arguments(template_arguments)))
    out = Console(highlight=False, soft_wrap=True)
    ends = ", ".join(loaded.tokenizer.decode([token_id]) for token_id in loaded.stop_token_ids)
    out.print(f"family {loaded.family.name}; an answer ends with {ends}", markup=False)
    for verdict in loaded.verdicts:
        out.print(f"{verdict.finding:<9}{verdict.probe}", markup=False)
        for line in filter(None, (verdict.reason, verdict.remedy and f"remedy: {verdict.remedy}")):
            out.print(f"{'':<9}  {line}", markup=False)
    if not loaded.appendable:
        raise ModelError(f"{model}: its chat template cannot be continued, every step will be rendered in full")
    out.print("Conversations are continued by appending.")


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ModelError(f"--template-arguments: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError("--template-arguments: must be a JSON object")
    return value
