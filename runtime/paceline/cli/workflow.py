"""`paceline workflow`: look at one workflow, explain it, close it, or delete what it said."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.cli.access import Tenant, steps_of, the_workflow, with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.explain import explain
from paceline.cli.failure import clear_errors
from paceline.cli.money import EXAMPLE, usd
from paceline.cli.outcome import Kind, Note, WorkflowId
from paceline.cli.outcome import set_ as set_outcome
from paceline.ledger.reports import CostQueries
from paceline.ledger.store import SqlLedger
from paceline.routing.pools import PoolReason
from paceline.workflow.costs import CostSummary
from paceline.workflow.model import OutcomeSource, Step, Workflow

app = typer.Typer(help="Show, explain and close workflows, and delete what they said.", no_args_is_help=True)
app.command()(explain)
_Found = tuple[Workflow, CostSummary, list[Step]]


@app.command()
@clear_errors
def finish(
    workflow_id: WorkflowId, kind: Kind, note: Note = "", tenant: Tenant = None, file: ConfigFile = None
) -> None:
    """Close a workflow with the outcome that you judge it to have."""
    set_outcome(
        workflow_id, kind, source=OutcomeSource.PERSON, exit_code=None, note=note, tenant=tenant, file=file
    )


@app.command()
@clear_errors
def show(
    workflow_id: WorkflowId,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, messages included.")] = False,
    tenant: Tenant = None,
    file: ConfigFile = None,
) -> None:
    """Show a workflow, what it cost, and its steps."""

    async def work(ledger: SqlLedger) -> _Found:
        found = await the_workflow(ledger, tenant, workflow_id)
        cost = await CostQueries(ledger).workflow_cost(found.tenant, workflow_id, include_children=False)
        return found, cost, await steps_of(ledger, found)

    found = with_ledger(file, work)
    if as_json:
        typer.echo(_json(found))
    else:
        _print(Console(), found)


@app.command("delete-content")
@clear_errors
def delete_content(workflow_id: WorkflowId, tenant: Tenant = None, file: ConfigFile = None) -> None:
    """Delete the texts and token ids of a workflow for good; counts, hashes and costs stay."""

    async def work(ledger: SqlLedger) -> None:
        found = await the_workflow(ledger, tenant, workflow_id)
        await ledger.delete_content(found.tenant, workflow_id)

    with_ledger(file, work)
    typer.echo(f"{workflow_id}: deleted the content")


def _json(found: _Found) -> str:
    """Everything but the token ids."""
    workflow, cost, steps = msgspec.to_builtins(found)
    for step in steps:
        del step["segments"]
    document = {"workflow": workflow, "cost": cost, "steps": steps}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _print(console: Console, found: _Found) -> None:
    workflow, cost, steps = found
    outcome = workflow.outcome
    facts = {
        "workflow": workflow.workflow_id,
        "tenant": workflow.tenant,
        "model": workflow.model,
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(workflow.labels.items())),
        "outcome": f"{outcome.kind.value} (by {outcome.source.value}) {outcome.note}" if outcome else "open",
        "created": f"{workflow.created_at:%Y-%m-%d %H:%M:%S} UTC",
        "content gone": (
            f"{workflow.content_deleted_at:%Y-%m-%d %H:%M:%S} UTC" if workflow.content_deleted_at else ""
        ),
        "parent": workflow.parent_workflow_id or "",
        "replica": workflow.replica or "",
        "list cost": usd(cost.list_nanos, example=cost.example_price),
        "retry cost": usd(cost.retry_nanos, example=cost.example_price),
        "infrastructure": usd(cost.infrastructure_nanos, example=cost.example_price),
    }
    for name, value in facts.items():
        if value:
            console.print(f"[bold]{name:>14}[/bold]  {escape(value)}", highlight=False)
    console.print(_step_table(steps))
    if cost.example_price:
        console.print(f"{EXAMPLE}: these are example prices, not anybody's real ones.")


def _step_table(steps: list[Step]) -> Table:
    """Pools are shown where there was one to choose."""
    names = ("step", "state", "class", "attempts", "prompt", "cached", "output", "drafted", "accepted", "checks")
    chosen = any(step.pool and step.pool.reason is not PoolReason.ONLY_POOL for step in steps)
    table = Table(
        *names, *(("pool", "saving s", "prefill s") if chosen else ()), "seconds", "cost", box=SIMPLE_HEAD
    )
    for step in steps:
        usage, speculation = step.usage, step.speculation
        reported = usage.uncached_prompt is not None
        prompt = (usage.uncached_prompt or 0) + (usage.cached_prompt or 0) if reported else None
        drafts = (speculation.drafted, speculation.accepted, speculation.draft_steps)
        counts = (prompt, usage.cached_prompt, usage.output, *drafts)
        table.add_row(
            step.step_id,
            step.error_reason or step.state.value,
            step.step_class or "-",
            str(step.attempt_count),
            *("-" if count is None else str(count) for count in counts),
            *(_pool(step) if chosen else ()),
            f"{step.timings.total:.2f}" if step.timings else "-",
            usd(step.cost.list_nanos, example=step.cost.example_price),
        )
    return table


def _pool(step: Step) -> tuple[str, str, str]:
    """Why the step ran in its pool, and what another one would have saved and cost, in seconds."""
    choice = step.pool
    if choice is None:
        return "-", "-", "-"
    terms = (choice.saving_seconds, choice.prefill_seconds)
    saving, prefill = ("-" if term is None else f"{term:+.2f}" for term in terms)
    return f"{choice.profile or 'plain'}: {choice.reason}", saving, prefill
