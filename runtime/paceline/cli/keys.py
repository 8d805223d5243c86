"""`paceline keys`: API keys."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from paceline.cli.access import Tenant, with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.ledger.keys import ApiKey, KeyStore
from paceline.ledger.store import SqlLedger

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)


@app.command()
@clear_errors
def create(
    tenant: Annotated[str, typer.Argument(help="Whose workflows the key sees: 8 to 64 of A-Z a-z 0-9 _ -.")],
    name: Annotated[str, typer.Option(help="What the key is for.")],
    file: ConfigFile = None,
) -> None:
    """Make a key and print it. Nobody can read it again: the ledger keeps only a hash."""

    async def work(ledger: SqlLedger) -> str:
        return (await KeyStore(ledger).create(tenant, name))[0]

    typer.echo(with_ledger(file, work))


@app.command("list")
@clear_errors
def list_(tenant: Tenant = None, file: ConfigFile = None) -> None:
    """Show the keys, without their secrets."""

    async def work(ledger: SqlLedger) -> list[ApiKey]:
        return await KeyStore(ledger).list(tenant)

    table = Table("key", "tenant", "name", "created", "revoked")
    for key in with_ledger(file, work):
        revoked = f"{key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else ""
        table.add_row(key.key_id, key.tenant, key.name, f"{key.created_at:%Y-%m-%d %H:%M}", revoked)
    Console().print(table)


@app.command()
@clear_errors
def revoke(
    key_id: Annotated[str, typer.Argument(help="The middle part of the key, as `list` shows it.")],
    file: ConfigFile = None,
) -> None:
    """Make a key useless, for good. A running server notices within seconds."""

    async def work(ledger: SqlLedger) -> None:
        await KeyStore(ledger).revoke(key_id)

    with_ledger(file, work)
    typer.echo(f"revoked {key_id}")
