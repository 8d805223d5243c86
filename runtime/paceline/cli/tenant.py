"""`paceline tenant`: what concerns all workflows of a tenant."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from paceline.cli.access import PAGE, with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.errors import WorkflowBusy
from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Workflow
from paceline.workflow.ports import WorkflowFilter

app = typer.Typer(help="Delete what a tenant's workflows said.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `delete-content` a sub-command although it is the only one."""


@app.command("delete-content")
@clear_errors
def delete_content(
    tenant: Annotated[str, typer.Argument(help="Whose.")],
    *,
    before: Annotated[
        datetime | None,
        typer.Option(
            help="Only of workflows that did not change since, in UTC.", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]
        ),
    ] = None,
    file: ConfigFile = None,
) -> None:
    """Delete the texts and token ids of a tenant's workflows for good; counts, hashes and costs stay."""
    moment = before.replace(tzinfo=UTC) if before else None

    async def work(ledger: SqlLedger) -> tuple[int, list[str]]:
        return await _delete(ledger, tenant, moment)

    deleted, busy = with_ledger(file, work)
    typer.echo(f"{tenant}: deleted the content of {deleted} workflows")
    if busy:
        typer.echo(f"running a step now, so not deleted: {', '.join(busy)}; run this again", err=True)
        raise typer.Exit(1)


async def _delete(ledger: SqlLedger, tenant: str, before: datetime | None) -> tuple[int, list[str]]:
    deleted, busy, token = 0, [], ""
    while True:
        page = await ledger.list_workflows(tenant, WorkflowFilter(), PAGE, token)
        for workflow in page.items:
            if not _due(workflow, before):
                continue
            try:
                await ledger.delete_content(tenant, workflow.workflow_id)
                deleted += 1
            except WorkflowBusy:
                busy.append(workflow.workflow_id)
        token = page.next_token
        if not token:
            return deleted, busy


def _due(workflow: Workflow, before: datetime | None) -> bool:
    """Whether the workflow has something to delete, and is old enough."""
    changed, deleted = workflow.updated_at, workflow.content_deleted_at
    if changed is None or (before and changed >= before):
        return False
    return deleted is None or deleted < changed or workflow.content_left
