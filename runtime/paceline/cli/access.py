"""How commands reach the ledger: beside a running server, without its lock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from paceline import config
from paceline.errors import InvalidArgument, WorkflowNotFound
from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Step, Workflow

T = TypeVar("T")
PAGE = 500

Tenant = Annotated[str | None, typer.Option(help="Only this tenant. Default: all.")]


def with_ledger(file: Path | None, work: Callable[[SqlLedger], Awaitable[T]]) -> T:
    """Open the configured ledger, await `work` on it, close it."""
    settings = config.load(file)

    async def run() -> T:
        ledger = await SqlLedger.open(settings.ledger_url, write_timeout=settings.ledger.write_timeout_seconds)
        try:
            return await work(ledger)
        finally:
            await ledger.close()

    return asyncio.run(run())


async def the_workflow(ledger: SqlLedger, tenant: str | None, workflow_id: str) -> Workflow:
    """Find a workflow by its id. Raises `WorkflowNotFound`, and `InvalidArgument` when several tenants have it."""
    found = [item for item in await ledger.find_workflows(workflow_id) if tenant in {None, item.tenant}]
    if not found:
        raise WorkflowNotFound(f"there is no workflow {workflow_id}", workflow_id=workflow_id)
    if len(found) > 1:
        tenants = ", ".join(item.tenant for item in found)
        raise InvalidArgument(f"--tenant: {workflow_id} exists for {tenants}; name one", field="tenant")
    return found[0]


async def steps_of(ledger: SqlLedger, workflow: Workflow) -> list[Step]:
    """Every step of a workflow, oldest first."""
    steps: list[Step] = []
    token = ""
    while True:
        page = await ledger.list_steps(workflow.tenant, workflow.workflow_id, PAGE, token)
        steps += page.items
        token = page.next_token
        if not token:
            return steps
