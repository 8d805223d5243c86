"""`paceline config`: write, check and show the configuration."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline import config
from paceline.cli import config_text
from paceline.cli.failure import clear_errors
from paceline.errors import ConfigError

app = typer.Typer(help="Write, check and show the configuration.", no_args_is_help=True)

HEADER = """\
# Paceline's configuration. Lines that begin with `#name =` show defaults; take the `#` away to change one.
# Prices marked `example = true` are examples, nobody's offer: put your own in, or costs stay marked EXAMPLE.
# Check this file with `paceline config check`. Variables win over it: PACELINE_SERVER__LISTEN=127.0.0.1:7450
"""
EXAMPLE_PRICE = {"input": "0.10", "output": "0.40", "cached_input": "0.02", "example": True}
EXAMPLE_ACCELERATOR = {"usd_per_hour": "0.50", "example": True}
EXAMPLE_INSTANCE = "example-instance"

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The TOML file. Default: $PACELINE_CONFIG, else ./paceline.toml where there is one."
    ),
]


class Platform(StrEnum):
    """Where the first engine of a new configuration runs."""

    CPU = "cpu"
    CUDA = "cuda"
    EMULATED = "emulated"
    URL = "url"


@app.command()
@clear_errors
def init(
    platform: Annotated[
        Platform, typer.Option(help="Engine that Paceline starts; `url`: a server that runs already.")
    ],
    model: Annotated[str, typer.Option(help="Folder, hub id, or a name that `paceline models list` shows.")],
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("paceline.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write a commented configuration with one model, one engine and example prices."""
    settings = starter(platform, model)
    try:
        with output.open("w" if force else "x") as file:
            file.write(HEADER + config_text.commented(settings))
    except FileExistsError:
        raise ConfigError(f"{output} exists; name another file by --output, or replace it with --force") from None
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; name another file") from None
    typer.echo(f"wrote {output}")


@app.command()
@clear_errors
def check(file: ConfigFile = None) -> None:
    """Say what is wrong with the configuration; exit code 1 if anything is."""
    config.load(file)
    typer.echo("ok")


@app.command()
@clear_errors
def show(file: ConfigFile = None) -> None:
    """Print the settings in force, defaults and variables included, with secrets masked."""
    typer.echo(config_text.effective(config.load(file)), nl=False)


def starter(platform: Platform, model: str) -> config.Settings:
    """The settings that `init` writes. Raises `ConfigError` for an empty model."""
    folder = Path(model).expanduser()
    name = (folder.name if folder.is_dir() else model.rsplit("/", 1)[-1]).lower()
    if not name:
        raise ConfigError("--model: is empty; name a folder, a hub id or a name of `paceline models list`")
    engine: dict[str, Any] = {"model": name, "instance_type": EXAMPLE_INSTANCE}
    values: dict[str, Any] = {
        "models": {name: {"path": _model_path(platform, model, folder)}},
        "engines": {platform.value: engine},
        "prices": {name: EXAMPLE_PRICE},
        "accelerators": {EXAMPLE_INSTANCE: EXAMPLE_ACCELERATOR},
    }
    if platform is Platform.URL:
        engine["url"] = "http://127.0.0.1:8000"
    else:
        engine |= {"platform": platform.value, "speculation": "ngram"}
        values["speculation"] = {"ngram": {"method": "ngram"}}
    if platform is Platform.CPU:  # it must not sample while it speculates
        values["models"][name]["sampling_temperature"] = 0.0
    return config.parse(values, "config init")


def _model_path(platform: Platform, model: str, folder: Path) -> str:
    if platform is Platform.EMULATED:
        return "emulated"
    return str(folder.resolve()) if folder.is_dir() else model
