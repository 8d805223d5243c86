"""`paceline outcome`: say how workflows ended."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.access import Tenant, the_workflow, with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Outcome, OutcomeKind, OutcomeSource
from paceline.workflow.validation import check_outcome

app = typer.Typer(help="Say how workflows ended.", no_args_is_help=True)

Kind = Annotated[OutcomeKind, typer.Argument(help="How it ended.")]
WorkflowId = Annotated[str, typer.Argument(help="The workflow.")]
Note = Annotated[str, typer.Option(help="Short free text.")]


@app.callback()
def _group() -> None:
    """Keep `set` a sub-command although it is the only one."""


@app.command("set")
@clear_errors
def set_(
    workflow_id: WorkflowId,
    kind: Kind,
    *,
    source: Annotated[OutcomeSource, typer.Option(help="Who says so.")] = OutcomeSource.PERSON,
    exit_code: Annotated[int | None, typer.Option(help="Exit code of the check command.")] = None,
    note: Note = "",
    tenant: Tenant = None,
    file: ConfigFile = None,
) -> None:
    """Set or correct the outcome of a workflow, open or closed. Every change is kept."""
    outcome = Outcome(kind, source, exit_code, note)
    check_outcome(outcome)

    async def work(ledger: SqlLedger) -> None:
        found = await the_workflow(ledger, tenant, workflow_id)
        await ledger.finish_workflow(found.tenant, workflow_id, outcome)

    with_ledger(file, work)
    typer.echo(f"{workflow_id}: {kind.value}")
