"""`paceline engine`: the venvs of the engines that Paceline starts, and the commands that start them."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from paceline.cli.failure import clear_errors
from paceline.cli.render import render
from paceline.engines import install as engines

app = typer.Typer(help="Install engines, each in its own venv, and show how they start.", no_args_is_help=True)
app.command()(render)


class Platform(StrEnum):
    """Platforms with an engine to install."""

    CPU = "cpu"
    CUDA = "cuda"


@app.callback()
def engine() -> None:
    """Install engines, each in its own venv, and show how they start."""


@app.command()
@clear_errors
def install(
    platform: Annotated[Platform, typer.Argument(help="Where the engine runs.")],
    torch_index: Annotated[
        str | None,
        typer.Option(help="Package index asked for the CPU build of torch when pip's own sources do not have it."),
    ] = None,
) -> None:
    """Install vLLM for a platform. Done already, it changes nothing."""
    recipe, out = engines.RECIPES[platform], Console(highlight=False, soft_wrap=True)
    if engines.up_to_date(platform):
        out.print(f"{engines.engine_python(platform)} (installed before)")
        return
    out.print(f"vLLM for {platform}: about {recipe.size_gib:g} GiB, about {recipe.minutes} minutes")
    begin = time.monotonic()
    with out.status("starting") as status:
        python = engines.install(
            platform, torch_index=torch_index, report=lambda line: status.update(escape(line))
        )
    versions = ", ".join(f"{name} {version}" for name, version in engines.versions(python).items())
    size = folder_gib(python.parent.parent)
    out.print(f"{python}\n{versions}; {size:.1f} GiB, {time.monotonic() - begin:.0f} s")


@app.command()
@clear_errors
def path(platform: Annotated[Platform, typer.Argument(help="Where the engine runs.")]) -> None:
    """Print the Python of an installed engine."""
    typer.echo(engines.engine_python(platform))


def folder_gib(folder: Path) -> float:
    """Size of all files below, in GiB."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / (1 << 30)
