"""Reservations against a workflow's budget, in the transaction that opens the attempt."""

from __future__ import annotations

from sqlalchemy import Connection, Row, select

from paceline.errors import BudgetExceeded, WorkflowFinished, WorkflowNotFound
from paceline.ledger.rows import now
from paceline.ledger.statements import RESERVE
from paceline.ledger.tables import workflows
from paceline.workflow.ports import Reservation


def reserve(connection: Connection, tenant: str, workflow_id: str, worst: Reservation, steps: int) -> None:
    """Reserve the worst case and count `steps`.

    Raises `WorkflowNotFound`, `WorkflowFinished` or `BudgetExceeded`; then nothing was written.
    """
    needed = {"list_nanos": worst.list_nanos, "tokens": worst.tokens, "steps": steps}
    found = RESERVE.run(
        connection, {"key_tenant": tenant, "key_workflow_id": workflow_id, "updated_at": now(), **needed}
    )
    if found.rowcount == 0:
        raise _refusal(connection, tenant, workflow_id, needed)


def _refusal(
    connection: Connection, tenant: str, workflow_id: str, needed: dict[str, int]
) -> WorkflowNotFound | WorkflowFinished | BudgetExceeded:
    key = (workflows.c.tenant == tenant, workflows.c.workflow_id == workflow_id)
    row = connection.execute(select(workflows).where(*key)).one_or_none()
    if row is None:
        return WorkflowNotFound(f"there is no workflow {workflow_id}", workflow_id=workflow_id)
    if row.outcome_kind is not None:
        return WorkflowFinished(
            f"workflow {workflow_id} is finished ({row.outcome_kind}); fork it to go on",
            workflow_id=workflow_id,
            outcome=row.outcome_kind,
        )
    return _exceeded(row, needed)


def _exceeded(row: Row[tuple[object, ...]], needed: dict[str, int]) -> BudgetExceeded:
    for kind, limit, spent, reserved in (
        ("list_nanos", row.budget_list_nanos, row.spent_list_nanos, row.reserved_list_nanos),
        ("tokens", row.budget_tokens, row.spent_tokens, row.reserved_tokens),
        ("steps", row.budget_steps, row.spent_steps, 0),
    ):
        if limit is not None and spent + reserved + needed[kind] > limit:
            break
    return BudgetExceeded(
        f"workflow {row.workflow_id} has a budget of {limit} {kind}: {spent} spent, {reserved} reserved, "
        f"this step needs up to {needed[kind]}; lower max_output_tokens or use a workflow with a larger budget",
        workflow_id=row.workflow_id,
        budget=kind,
        limit=limit,
        spent=spent,
        reserved=reserved,
        needed=needed[kind],
    )
