"""Deletes texts and token ids and keeps counts, hashes and costs: operations for the writer, and what is due."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    and_,
    case,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    update,
)

from paceline.errors import WorkflowBusy, WorkflowNotFound
from paceline.ledger.rows import MILLION, from_microseconds, now, to_microseconds
from paceline.ledger.tables import preambles, steps, workflows
from paceline.ledger.writer import Operation
from paceline.workflow.model import StepState, StorePolicy
from paceline.workflow.ports import Deleted, Expired, Retention

STEPS_AT_ONCE = 100
"""Steps per transaction: their contents are overwritten, and nobody else writes meanwhile."""
_NO_LIST = "[]"
_UNENDED = (StepState.QUEUED.value, StepState.RUNNING.value)
_EMPTY: dict[str, Any] = {
    "input": _NO_LIST,
    "output": None,
    "calls": None,
    "rendered_ids": None,
    "generated_ids": None,
    "preamble_id": None,
    "error_message": "",
}
_OWN_TIME = or_(workflows.c.retention_seconds.is_not(None), workflows.c.content_deleted_at.is_not(None))
_STORED = workflows.c.content_deleted_at.is_(None)


def _has_content(of: FromClause) -> ColumnElement[bool]:
    """Whether something of its own is stored: never deleted, written since, or only what it shares was deleted."""
    return or_(of.c.content_deleted_at.is_(None), of.c.content_deleted_at < of.c.updated_at, of.c.content_left)


def delete_content(tenant: str, workflow_id: str, unchanged_since: int | None) -> Operation[bool]:
    """Empty up to `STEPS_AT_ONCE` steps of a workflow; False says that there may be more.

    Only the last run marks the workflow and the forks that share steps with it, so that one that was cut off is
    taken up again.
    """

    def run(connection: Connection) -> bool:
        row = _locked(connection, tenant, workflow_id)
        if unchanged_since is not None and row.updated_at != unchanged_since:
            return True
        _check_idle(connection, tenant, workflow_id)
        if _empty_steps(connection, tenant, workflow_id) == STEPS_AT_ONCE:
            return False
        _empty_workflow(connection, tenant, workflow_id)
        _mark(connection, tenant, workflow_id)
        return True

    return Operation(run)


def _locked(connection: Connection, tenant: str, workflow_id: str) -> Row[Any]:
    """The workflow, of which no step can be opened before this transaction ends."""
    statement = select(workflows.c.updated_at).where(
        workflows.c.tenant == tenant, workflows.c.workflow_id == workflow_id
    )
    row = connection.execute(statement.with_for_update()).one_or_none()
    if row is None:
        raise WorkflowNotFound(f"there is no workflow {workflow_id}", workflow_id=workflow_id)
    return row


def _check_idle(connection: Connection, tenant: str, workflow_id: str) -> None:
    statement = _own_steps(select(steps.c.step_id), tenant, workflow_id).where(steps.c.state.in_(_UNENDED))
    if running := connection.execute(statement.limit(1)).scalar():
        raise WorkflowBusy(
            f"workflow {workflow_id} is running step {running}; delete its content when that has ended",
            workflow_id=workflow_id,
            step_id=running,
        )


def _own_steps(statement: Any, tenant: str, workflow_id: str) -> Any:
    return statement.where(steps.c.tenant == tenant, steps.c.workflow_id == workflow_id)


def _empty_steps(connection: Connection, tenant: str, workflow_id: str) -> int:
    """Empty some steps; returns how many."""
    full = or_(
        *(
            steps.c[name].is_not(None) if value is None else steps.c[name] != value
            for name, value in _EMPTY.items()
        )
    )
    found = connection.execute(
        _own_steps(select(steps.c.step_id, steps.c.preamble_id), tenant, workflow_id)
        .where(full)
        .limit(STEPS_AT_ONCE)
    ).all()
    connection.execute(update(steps).where(steps.c.step_id.in_([row.step_id for row in found])).values(_EMPTY))
    shared = select(steps.c.step_id).where(steps.c.preamble_id == preambles.c.preamble_id).exists()
    used = {row.preamble_id for row in found if row.preamble_id}
    connection.execute(delete(preambles).where(preambles.c.preamble_id.in_(used), ~shared))
    return len(found)


def _heirs(connection: Connection, tenant: str, workflow_id: str) -> list[str]:
    """Workflows whose context begins with steps of this one: its forks, and forks of those."""
    found: list[str] = []
    owners = {workflow_id}
    while owners:
        forked = steps.alias()
        children = (
            select(workflows.c.workflow_id)
            .join(forked, forked.c.step_id == workflows.c.forked_step_id)
            .where(workflows.c.tenant == tenant, workflows.c.parent_workflow_id.in_(owners))
            .where(forked.c.workflow_id.in_({workflow_id, *found}))
        )
        owners = set(connection.execute(children).scalars()) - {workflow_id, *found}
        found += sorted(owners)
    return found


def _empty_workflow(connection: Connection, tenant: str, workflow_id: str) -> None:
    own = workflows.c
    connection.execute(
        update(workflows)
        .where(own.tenant == tenant, own.workflow_id == workflow_id)
        .values(
            system_gone=or_(own.system_gone, own.system != ""),
            tools_gone=or_(own.tools_gone, own.tools != _NO_LIST),
            system="",
            tools=_NO_LIST,
        )
    )


def _mark(connection: Connection, tenant: str, workflow_id: str) -> None:
    """Say when it was, with the forks that share steps. Looks again for those that came meanwhile."""
    moment, marked = now(), set[str]()
    own = workflows.c
    while fresh := {workflow_id, *_heirs(connection, tenant, workflow_id)} - marked:
        this = and_(own.tenant == tenant, own.workflow_id.in_(fresh))
        left = and_(own.workflow_id != workflow_id, _has_content(workflows))
        connection.execute(update(workflows).where(this).values(content_deleted_at=moment, content_left=left))
        marked |= fresh


def deleted_since(connection: Connection, moment: datetime) -> list[Deleted]:
    """The workflows whose last deletion was not before."""
    own = workflows.c
    rows = connection.execute(
        select(own.tenant, own.workflow_id, own.content_deleted_at).where(
            own.content_deleted_at >= to_microseconds(moment)
        )
    )
    return [Deleted(row.tenant, row.workflow_id, from_microseconds(row.content_deleted_at)) for row in rows]


def expired(connection: Connection, retention: Retention, most: int) -> list[Expired]:
    """Workflows whose content was kept long enough; a workflow waits for its forks."""
    moment = now()
    due = [_due(moment, retention, _OWN_TIME)]
    if configured := [*retention.tenants.values(), *([] if retention.default is None else [retention.default])]:
        # Created before it was to be kept no longer: that condition has the index.
        created = workflows.c.created_at < moment - round(min(configured) * MILLION)
        due.append(_due(moment, retention, and_(_STORED, created)))
    found: list[Expired] = []
    for condition in due:
        rows = connection.execute(
            select(workflows.c.tenant, workflows.c.workflow_id, workflows.c.updated_at)
            .where(condition)
            .limit(most - len(found))
        )
        known = {(item.tenant, item.workflow_id) for item in found}
        found += [
            Expired(row.tenant, row.workflow_id, from_microseconds(row.updated_at))
            for row in rows
            if (row.tenant, row.workflow_id) not in known
        ]
    return found


def _due(moment: int, retention: Retention, among: ColumnElement[bool]) -> ColumnElement[bool]:
    """The condition that a workflow's content is to be deleted."""
    running = select(steps.c.step_id).where(
        steps.c.tenant == workflows.c.tenant,
        steps.c.workflow_id == workflows.c.workflow_id,
        steps.c.state.in_(_UNENDED),
    )
    fork = workflows.alias()
    forks = select(fork.c.workflow_id).where(
        fork.c.tenant == workflows.c.tenant,
        fork.c.parent_workflow_id == workflows.c.workflow_id,
        fork.c.forked_step_id.is_not(None),
        _has_content(fork),
    )
    return and_(
        among,
        workflows.c.store == StorePolicy.FULL.value,
        workflows.c.updated_at < moment - _period(retention),
        _has_content(workflows),
        ~running.exists(),
        ~forks.exists(),
    )


def _period(retention: Retention) -> ColumnElement[int]:
    """Microseconds that a workflow's content is kept; NULL: for ever."""
    default = null() if retention.default is None else literal(round(retention.default * MILLION))
    tenants = {name: round(seconds * MILLION) for name, seconds in retention.tenants.items()}
    configured: ColumnElement[Any] = case(tenants, value=workflows.c.tenant, else_=default) if tenants else default
    return func.coalesce(workflows.c.retention_seconds * MILLION, configured)
