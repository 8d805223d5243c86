"""Steps that are found by the hash of their conversation."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, or_, select

from paceline.ledger.tables import steps, workflows
from paceline.workflow.model import StepState, StorePolicy, WorkflowMatch
from paceline.workflow.ports import Answered, Unanswered

MOST_STEPS = 100
"""How many steps of one conversation are looked at, the latest ones."""
MOST_HASHES = 500
"""How many hashes one statement looks for."""
_DELETED = "[]"
"""The messages of a step whose content is deleted, or not stored."""
_LIVE = (StepState.FINISHED.value, StepState.QUEUED.value, StepState.RUNNING.value)
_UNANSWERED = (StepState.FAILED.value, StepState.CANCELLED.value)

_other = steps.alias("other")
_with_workflow = steps.join(
    workflows, (workflows.c.tenant == steps.c.tenant) & (workflows.c.workflow_id == steps.c.workflow_id)
)
_this_chain = (steps.c.tenant == bindparam("tenant")) & (steps.c.chain_hash == bindparam("chain_hash"))
_latest_first = (steps.c.created_at.desc(), steps.c.step_id.desc())

_KNOWN = (
    select(steps.c.chain_hash)
    .where(steps.c.tenant == bindparam("tenant"), steps.c.chain_hash.in_(bindparam("hashes", expanding=True)))
    .distinct()
)
_ANSWERED = (
    select(
        steps.c.step_id,
        steps.c.workflow_id,
        or_(
            workflows.c.head_step_id.is_distinct_from(steps.c.step_id),
            select(_other.c.step_id)
            .where(_other.c.parent_step_id == steps.c.step_id, _other.c.state.in_(_LIVE))
            .exists(),
        ).label("continued"),
        workflows.c.outcome_kind,
    )
    .select_from(_with_workflow)
    .where(_this_chain, steps.c.state == StepState.FINISHED.value)
    .order_by(*_latest_first)
    .limit(MOST_STEPS)
)
_NOT_ANSWERED = (
    select(
        *(steps.c[name] for name in ("request_id", "request_hash", "workflow_id", "workflow_match")),
        steps.c.error_reason,
        or_(
            workflows.c.outcome_kind.is_not(None),
            select(_other.c.step_id)
            .where(
                _other.c.tenant == steps.c.tenant,
                _other.c.workflow_id == steps.c.workflow_id,
                _other.c.created_at > steps.c.created_at,
                _other.c.state.in_(_LIVE),
            )
            .exists(),
        ).label("replaced"),
    )
    .select_from(_with_workflow)
    .where(_this_chain, steps.c.state.in_(_UNANSWERED))
    # One whose messages were deleted cannot run again.
    .where(or_(steps.c.input != _DELETED, workflows.c.store == StorePolicy.NONE.value))
    .order_by(*_latest_first)
    .limit(MOST_STEPS)
)


def find_answered(connection: Connection, tenant: str, hashes: Sequence[bytes]) -> list[Answered]:
    """The finished steps with the first of these chain hashes that any has, latest first."""
    for start in range(0, len(hashes), MOST_HASHES):
        chunk = hashes[start : start + MOST_HASHES]
        rows = connection.execute(_KNOWN, {"tenant": tenant, "hashes": chunk})
        known = {bytes(row.chain_hash) for row in rows}
        for chain_hash in chunk:
            if chain_hash in known:
                return _answered(connection, tenant, chain_hash)
    return []


def _answered(connection: Connection, tenant: str, chain_hash: bytes) -> list[Answered]:
    rows = connection.execute(_ANSWERED, {"tenant": tenant, "chain_hash": chain_hash})
    return [
        Answered(row.step_id, row.workflow_id, bool(row.continued), row.outcome_kind is not None) for row in rows
    ]


def find_unanswered(connection: Connection, tenant: str, chain_hash: bytes) -> list[Unanswered]:
    """The failed and cancelled steps with this chain hash, latest first, but those that were deleted."""
    rows = connection.execute(_NOT_ANSWERED, {"tenant": tenant, "chain_hash": chain_hash})
    return [
        Unanswered(
            row.request_id,
            row.request_hash,
            row.workflow_id,
            WorkflowMatch(row.workflow_match),
            row.error_reason,
            not row.replaced,
        )
        for row in rows
    ]
