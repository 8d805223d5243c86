"""Writes of workflows, each as an `Operation` for the writer."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from paceline.errors import WorkflowExists, WorkflowNotFound
from paceline.ledger.rows import MILLION, now
from paceline.ledger.tables import outcome_changes, steps, workflow_labels, workflows
from paceline.ledger.workflow_rows import workflow_from_row, workflow_values
from paceline.ledger.writer import Operation
from paceline.workflow.model import Outcome, OutcomeKind, OutcomeSource, StepState, Workflow

IDLE_BATCH = 500
_UNENDED = (StepState.QUEUED.value, StepState.RUNNING.value)


def create(workflow: Workflow, request_hash: str) -> Operation[Workflow]:
    """Insert a workflow and its labels."""
    row = workflow_values(workflow, request_hash)
    key = {"tenant": workflow.tenant, "workflow_id": workflow.workflow_id}
    labels = [{**key, "name": name, "value": value} for name, value in workflow.labels.items()]

    def run(connection: Connection) -> Workflow:
        deleted_at = _deleted_at(connection, workflow) if workflow.forked_step_id else None
        connection.execute(insert(workflows), {**row, "content_deleted_at": deleted_at})
        if labels:
            connection.execute(insert(workflow_labels), labels)
        return workflow_from_row(_row(connection, workflow.tenant, workflow.workflow_id))

    return Operation(run, partial(_explain_create, workflow, request_hash))


def _deleted_at(connection: Connection, fork: Workflow) -> int | None:
    """When content of the forked workflow was deleted, also if that is happening at this moment."""
    origin = select(workflows.c.content_deleted_at).where(
        workflows.c.tenant == fork.tenant, workflows.c.workflow_id == fork.parent_workflow_id
    )
    return connection.execute(origin.with_for_update(read=True)).scalar()


def _explain_create(workflow: Workflow, request_hash: str, connection: Connection) -> Workflow:
    statement = select(workflows).where(
        workflows.c.tenant == workflow.tenant, workflows.c.workflow_id == workflow.workflow_id
    )
    row = connection.execute(statement).one_or_none()
    if row is None:
        parent = workflow.parent_workflow_id
        raise WorkflowNotFound(f"there is no workflow {parent}", workflow_id=parent)
    if row.request_hash != request_hash:
        raise WorkflowExists(
            f"workflow {workflow.workflow_id} exists, created by another request; choose another workflow_id",
            workflow_id=workflow.workflow_id,
        )
    return workflow_from_row(row)


def finish(tenant: str, workflow_id: str, outcome: Outcome) -> Operation[Workflow]:
    """Set or correct the outcome. Setting the same again changes nothing."""

    def run(connection: Connection) -> Workflow:
        _set_outcome(connection, _row(connection, tenant, workflow_id), outcome)
        return workflow_from_row(_row(connection, tenant, workflow_id))

    return Operation(run)


def close_idle(idle_seconds: float) -> Operation[int]:
    """Close up to `IDLE_BATCH` open workflows without activity for so long and without a running step."""

    def run(connection: Connection) -> int:
        before = now() - round(idle_seconds * MILLION)
        running = select(steps.c.step_id).where(
            steps.c.tenant == workflows.c.tenant,
            steps.c.workflow_id == workflows.c.workflow_id,
            steps.c.state.in_(_UNENDED),
        )
        # Created before it was idle: that condition has the index.
        idle = (
            select(workflows)
            .where(workflows.c.outcome_kind.is_(None), workflows.c.created_at < before)
            .where(workflows.c.updated_at < before, ~running.exists())
            .limit(IDLE_BATCH)
        )
        rows = connection.execute(idle).all()
        for row in rows:
            _set_outcome(connection, row, Outcome(OutcomeKind.UNKNOWN, OutcomeSource.RUNTIME))
        return len(rows)

    return Operation(run)


def _row(connection: Connection, tenant: str, workflow_id: str) -> Row[Any]:
    statement = select(workflows).where(workflows.c.tenant == tenant, workflows.c.workflow_id == workflow_id)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise WorkflowNotFound(f"there is no workflow {workflow_id}", workflow_id=workflow_id)
    return row


def _set_outcome(connection: Connection, row: Row[Any], outcome: Outcome) -> None:
    kind, source = outcome.kind.value, outcome.source.value
    known = (row.outcome_kind, row.outcome_source, row.outcome_exit_code, row.outcome_note)
    if known == (kind, source, outcome.check_exit_code, outcome.note):
        return
    moment = now()
    connection.execute(
        update(workflows)
        .where(workflows.c.tenant == row.tenant, workflows.c.workflow_id == row.workflow_id)
        .values(
            outcome_kind=kind,
            outcome_source=source,
            outcome_exit_code=outcome.check_exit_code,
            outcome_note=outcome.note,
            outcome_set_at=moment,
            updated_at=moment,
        )
    )
    change = {
        "tenant": row.tenant,
        "workflow_id": row.workflow_id,
        "changed_at": moment,
        "old_kind": row.outcome_kind,
        "old_source": row.outcome_source,
        "kind": kind,
        "source": source,
        "exit_code": outcome.check_exit_code,
        "note": outcome.note,
    }
    connection.execute(insert(outcome_changes), change)
