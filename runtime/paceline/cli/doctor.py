"""`paceline doctor`: is this machine ready, and if not, what to do."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline import config, disk
from paceline.cli import doctor_devices, doctor_engines
from paceline.cli.config import ConfigFile
from paceline.cli.findings import Check, Finding, Level
from paceline.errors import PacelineError, SchemaOutdated
from paceline.ledger.database import Database
from paceline.ledger.engine import parse_url, sqlite_path
from paceline.models.catalog import CATALOG, model_dir, resolve_model

COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "red"}
MEMORY_GIB = 6
"""What the smallest model and its server take."""
DISK_GIB = 8
"""An engine venv, the smallest model, and room to convert it."""


def doctor(path: ConfigFile = None) -> None:
    """Check the machine, the engines, the models, the configuration and the database. Exit code 1: a problem."""
    findings = list(examine(path))
    table = Table("what", "", "found", "what to do")
    for finding in findings:
        mark = f"[{COLOURS[finding.level]}]{finding.level}"
        table.add_row(finding.subject, mark, escape(finding.text), escape(finding.remedy))
    Console(highlight=False).print(table)
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)


def examine(path: Path | None) -> Iterator[Finding]:
    """All findings."""
    try:
        settings = config.load(path)
    except PacelineError as error:
        settings = config.Settings()
        yield Finding(
            "configuration", "problem", error.message, "correct the file; `paceline config check` shows more"
        )
    else:
        engines = ", ".join(settings.engines) or "none"
        remedy = "" if settings.engines else "`paceline config init` writes a configuration"
        yield Finding("configuration", "ok" if settings.engines else "warning", f"engines: {engines}", remedy)
    for check in CHECKS:
        yield from check(settings)


def system(_settings: config.Settings) -> Iterator[Finding]:
    """Operating system and Python."""
    name = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform == "linux":
        yield Finding("system", "ok", name)
    else:
        yield Finding("system", "warning", name, "only Linux starts engines; name running servers by `url = ...`")
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding(
        "Python", "ok" if fits else "problem", platform.python_version(), "" if fits else "use 3.11 to 3.13"
    )


def memory(_settings: config.Settings) -> Iterator[Finding]:
    """Memory."""
    found = psutil.virtual_memory()
    text = f"{found.total / disk.GIB:.1f} GiB, {found.available / disk.GIB:.1f} free"
    if found.available / disk.GIB >= MEMORY_GIB:
        yield Finding("memory", "ok", text)
    else:
        yield Finding(
            "memory", "warning", text, f"the smallest model with its server takes about {MEMORY_GIB} GiB"
        )


def storage(_settings: config.Settings) -> Iterator[Finding]:
    """Disk space for engines and models."""
    problem = disk.shortage(config.cache_dir(), DISK_GIB)
    text = f"{disk.free_gib(config.cache_dir()):.1f} GiB free at {config.cache_dir()}"
    yield Finding("disk", "warning" if problem else "ok", text, problem and "engines and models need about 8 GiB")


def models(settings: config.Settings) -> Iterator[Finding]:
    """The files of the configured models, and the fetched ones."""
    for name, model in settings.models.items():
        try:
            yield Finding(f"model {name}", "ok", resolve_model(model.path))
        except PacelineError as error:
            yield Finding(f"model {name}", "problem", error.message, "see the message")
    fetched = [name for name in CATALOG if model_dir(name).is_dir()]
    yield Finding("fetched models", "ok", ", ".join(fetched) or "none")


def ledger(settings: config.Settings) -> Iterator[Finding]:
    """The database and its schema."""

    async def reach() -> str:
        database = await Database.open(settings.ledger_url, timeout=settings.ledger.write_timeout_seconds)
        try:
            return database.name
        finally:
            await database.close()

    try:
        path = sqlite_path(parse_url(settings.ledger_url))
        if path and not path.exists():
            yield Finding("database", "ok", f"{path} is not there yet", "`paceline db upgrade` makes it")
        else:
            yield Finding("database", "ok", asyncio.run(reach()))
    except SchemaOutdated as error:
        yield Finding("database", "problem", error.message, "`paceline db upgrade`")
    except PacelineError as error:
        yield Finding("database", "problem", error.message, "check ledger.url and the database")


CHECKS: list[Check] = [
    system,
    doctor_devices.processor,
    memory,
    storage,
    doctor_devices.gpus,
    doctor_devices.neuron,
    doctor_engines.engine_venvs,
    models,
    ledger,
]
