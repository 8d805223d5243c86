"""`paceline engine render`: how a configured engine starts, for any machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from paceline import config, platforms
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.errors import ConfigError, ModelError
from paceline.models.catalog import resolve_model
from paceline.platforms import kubernetes, text
from paceline.speculation import checks

PYTHON = "python"
"""Stands for the Python of the engine's environment."""


class Format(StrEnum):
    """What is printed."""

    CLI = "cli"
    ENV = "env"
    K8S = "k8s"


@clear_errors
def render(
    name: Annotated[str, typer.Argument(help="Engine of the configuration, as in [engines.NAME].")],
    style: Annotated[
        Format,
        typer.Option(
            "--format", help="A command with its variables, the variables alone, or a part of a Kubernetes pod."
        ),
    ] = Format.CLI,
    port: Annotated[int, typer.Option(help="Port of the server.", min=1, max=config.MAX_PORT)] = 8000,
    image: Annotated[str, typer.Option(help="Container image. Default: the published one, where known.")] = "",
    file: ConfigFile = None,
) -> None:
    """Print how an engine of the configuration starts, after checking the platform's rules. Starts nothing.

    Neither the engine nor the models need to be on this machine; what their files would tell is then not checked.
    """
    settings = config.load(file)
    engine = settings.engines.get(name)
    if engine is None:
        known = ", ".join(settings.engines) or "none"
        raise ConfigError(f"no [engines.{name}] in the configuration; known: {known}")
    if engine.url:
        raise ConfigError(f"engines.{name} is a running server (`url`); set `platform` instead to render it")
    profile = settings.speculation.get(engine.speculation)
    model = known_path(settings.models[engine.model].path)
    if profile and profile.drafter:
        profile = profile.model_copy(update={"drafter": known_path(profile.drafter)})
    report(engine, profile, model)
    if style is Format.K8S:
        typer.echo(kubernetes.fragment(name, engine, profile, model, port=port, image=image), nl=False)
        return
    plan = platforms.as_written(engine, profile, model, Path(engine.python or PYTHON), port)
    typer.echo(text.command(plan, engine) if style is Format.CLI else text.variables(plan, engine), nl=False)


def known_path(path: str) -> str:
    """What the engine loads: the folder of a fetched model, else the path as it is written."""
    try:
        return resolve_model(path)
    except ModelError:
        return path


def report(engine: config.Engine, profile: config.Speculation | None, model: str) -> None:
    """Print warnings to standard error. Raises `ConfigError` for what the rules refuse."""
    try:
        found = checks.check_engine(engine, profile, model)
    except ModelError as error:
        found = checks.check_platform(engine, profile)
        typer.echo(f"# not checked against the model's files: {error.message}", err=True)
    for item in found:
        typer.echo(f"# warning {item.rule}: {item.statement}; {item.remedy}", err=True)
