"""Workflows to rows and back."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Row

from paceline.ledger.rows import (
    Values,
    from_microseconds,
    now,
    optional_moment,
    to_json,
    to_microseconds,
    tools_from_json,
)
from paceline.workflow.model import (
    Budget,
    Outcome,
    OutcomeKind,
    OutcomeSource,
    Sampling,
    StorePolicy,
    TranscriptPolicy,
    Workflow,
)

_sampling = msgspec.json.Decoder(Sampling)
_labels = msgspec.json.Decoder(dict[str, str])


def workflow_values(workflow: Workflow, request_hash: str) -> Values:
    """The row of a new workflow."""
    moment = to_microseconds(workflow.created_at) if workflow.created_at else now()
    budget, stored = workflow.budget, workflow.store is StorePolicy.FULL
    return {
        "tenant": workflow.tenant,
        "workflow_id": workflow.workflow_id,
        "request_hash": request_hash,
        "model": workflow.model,
        "system": workflow.system if stored else "",
        "tools": to_json(workflow.tools if stored else ()),
        "sampling": to_json(workflow.sampling),
        "labels": to_json(workflow.labels),
        "budget_list_nanos": budget.list_nanos,
        "budget_tokens": budget.tokens,
        "budget_steps": budget.steps,
        "spent_list_nanos": 0,
        "spent_tokens": 0,
        "spent_steps": 0,
        "reserved_list_nanos": 0,
        "reserved_tokens": 0,
        "transcript_policy": workflow.transcript_policy.value,
        "store": workflow.store.value,
        "retention_seconds": workflow.retention_seconds,
        "system_gone": workflow.system_gone or bool(workflow.system and not stored),
        "tools_gone": workflow.tools_gone or bool(workflow.tools and not stored),
        "parent_workflow_id": workflow.parent_workflow_id,
        "forked_step_id": workflow.forked_step_id,
        "head_step_id": workflow.head_step_id,
        "replica": workflow.replica,
        "created_at": moment,
        "updated_at": moment,
    }


def workflow_from_row(row: Any) -> Workflow:
    """The workflow of a row of `workflows`: any object with its columns as attributes."""
    return Workflow(
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        model=row.model,
        system=row.system,
        tools=tools_from_json(row.tools),
        sampling=_sampling.decode(row.sampling),
        labels=_labels.decode(row.labels),
        budget=Budget(row.budget_list_nanos, row.budget_tokens, row.budget_steps),
        transcript_policy=TranscriptPolicy(row.transcript_policy),
        store=StorePolicy(row.store),
        retention_seconds=row.retention_seconds,
        content_deleted_at=optional_moment(row.content_deleted_at),
        system_gone=bool(row.system_gone),
        tools_gone=bool(row.tools_gone),
        content_left=bool(row.content_left),
        parent_workflow_id=row.parent_workflow_id,
        forked_step_id=row.forked_step_id,
        head_step_id=row.head_step_id,
        replica=row.replica,
        outcome=_outcome(row),
        created_at=from_microseconds(row.created_at),
        updated_at=from_microseconds(row.updated_at),
    )


def _outcome(row: Row[Any]) -> Outcome | None:
    if row.outcome_kind is None:
        return None
    return Outcome(
        kind=OutcomeKind(row.outcome_kind),
        source=OutcomeSource(row.outcome_source),
        check_exit_code=row.outcome_exit_code,
        note=row.outcome_note,
        set_at=from_microseconds(row.outcome_set_at),
    )
