"""`paceline db`: the schema of the ledger."""

from __future__ import annotations

import typer

from paceline import config
from paceline.cli.access import with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.ledger import schema
from paceline.ledger.engine import parse_url
from paceline.ledger.store import SqlLedger

app = typer.Typer(help="Make, upgrade and check the database.", no_args_is_help=True)


@app.command()
@clear_errors
def upgrade(file: ConfigFile = None) -> None:
    """Create the tables, or bring them to this version. On SQLite, stop the server first."""
    url = config.load(file).ledger_url
    schema.upgrade(url)
    typer.echo(f"{schema.describe(parse_url(url))} is up to date")


@app.command()
@clear_errors
def check(file: ConfigFile = None) -> None:
    """Say whether the database can be read and fits this version, and how much it holds; exit code 1 if not."""

    async def work(ledger: SqlLedger) -> None:
        counts = await ledger.counts()
        held = ", ".join(f"{count} {name}" for name, count in counts.items())
        typer.echo(f"{ledger.database.name} is up to date: {held}")

    with_ledger(file, work)
