"""Writes of steps and attempts, each as an `Operation` for the writer."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, select, update

from paceline.errors import InternalError, RequestIdReused, RuntimeLost, StepNotFound, WorkflowBusy
from paceline.ledger.budgets import reserve
from paceline.ledger.rows import (
    Values,
    attempt_end_values,
    attempt_values,
    cost_values,
    now,
    preamble_values,
    speculation_values,
    spent_tokens,
    step_end_values,
    step_values,
    usage_values,
)
from paceline.ledger.statements import (
    ATTEMPT_STATE,
    CHECKPOINT,
    END_ATTEMPT,
    END_STEP,
    INSERT_ATTEMPT,
    INSERT_PREAMBLE,
    INSERT_STEP,
    RETRYABLE,
    SETTLE,
    SETTLE_AND_ADVANCE,
    START_STEP,
)
from paceline.ledger.tables import steps
from paceline.ledger.writer import Operation
from paceline.workflow.model import Step, StepState, UsageSource
from paceline.workflow.ports import AttemptCheckpoint, AttemptEnd, NewAttempt, Reservation


def open_step(step: Step, attempt: NewAttempt | None) -> Operation[None]:
    """Insert a step, with its first attempt if it has one."""
    row = step_values(step, attempt)
    preamble = preamble_values(step)
    if preamble:
        row["preamble_id"] = preamble["preamble_id"]
    attempt_row = attempt_values(attempt, step.tenant) if attempt else None
    worst = attempt.reservation if attempt else Reservation()

    def run(connection: Connection) -> None:
        reserve(connection, step.tenant, step.workflow_id, worst, steps=1)
        if preamble:
            connection.execute(INSERT_PREAMBLE[connection.dialect.name], preamble)
        connection.execute(INSERT_STEP, row)
        if attempt_row:
            connection.execute(INSERT_ATTEMPT, attempt_row)

    return Operation(run, partial(_explain_open, step, attempt))


def _explain_open(step: Step, attempt: NewAttempt | None, connection: Connection) -> None:
    owner = select(steps.c.step_id).where(steps.c.tenant == step.tenant, steps.c.request_id == step.request_id)
    known = connection.execute(owner).scalar()
    if known == step.step_id and (attempt is None or _attempt_row(connection, attempt.attempt_id)):
        return
    if known is not None:
        raise RequestIdReused(
            f"request_id {step.request_id} belongs to step {known}; choose a new one",
            request_id=step.request_id,
            step_id=known,
        )
    raise StepNotFound(f"there is no step {step.parent_step_id}", step_id=step.parent_step_id)


def open_attempt(attempt: NewAttempt) -> Operation[None]:
    """Insert an attempt for a known step."""
    start = {
        "key_step_id": attempt.step_id,
        "runtime_id": attempt.runtime_id,
        "attempt_count": attempt.number,
        "last_attempt_id": attempt.attempt_id,
    }

    def run(connection: Connection) -> None:
        tenant = connection.execute(START_STEP, start).scalar()
        if tenant is None:
            _check_started(connection, attempt)
            return
        reserve(connection, tenant, attempt.workflow_id, attempt.reservation, steps=0)
        connection.execute(INSERT_ATTEMPT, attempt_values(attempt, tenant))

    return Operation(run)


def _check_started(connection: Connection, attempt: NewAttempt) -> None:
    """Accept an attempt that an earlier run has opened; raise for any other step that cannot start."""
    if _attempt_row(connection, attempt.attempt_id):
        return
    state = connection.execute(select(steps.c.state).where(steps.c.step_id == attempt.step_id)).scalar()
    if state is None:
        raise StepNotFound(f"there is no step {attempt.step_id}", step_id=attempt.step_id)
    raise WorkflowBusy(f"step {attempt.step_id} is {state} already", step_id=attempt.step_id, state=state)


def requeue_step(step_id: str, runtime_id: str) -> Operation[bool]:
    """Take over an ended step; True if this runtime has it."""
    statement = (
        update(steps)
        .where(steps.c.step_id == step_id, steps.c.state.in_(RETRYABLE))
        .values(
            state=StepState.QUEUED.value, runtime_id=runtime_id, error_reason="", error_message="", ended_at=None
        )
    )
    return Operation(lambda connection: connection.execute(statement).rowcount == 1)


def close_attempt(end: AttemptEnd) -> Operation[None]:
    """Close an attempt and its step, settle the budget, and move the head if it finished."""
    ended: Values = {"key_attempt_id": end.attempt_id, **attempt_end_values(end)}
    step: Values = {"key_step_id": end.step_id, **step_end_values(end)}

    def run(connection: Connection) -> None:
        row = connection.execute(END_ATTEMPT, ended).one_or_none()
        if row is None:
            _check_closed(connection, end)
            return
        connection.execute(END_STEP, step)
        head = {"head_step_id": end.step_id, "replica": end.replica} if end.state is StepState.FINISHED else None
        usage = end.usage
        tokens = spent_tokens(usage.uncached_prompt, usage.cached_prompt, usage.output, row.prompt_tokens)
        settle(connection, row, end.cost.list_nanos, tokens, head)

    return Operation(run)


def settle(
    connection: Connection, attempt: Row[Any], list_nanos: int | None, tokens: int, head: Values | None
) -> None:
    """Release the reservation of an attempt and add what it spent; `head` moves the workflow's head."""
    connection.execute(
        SETTLE_AND_ADVANCE if head else SETTLE,
        {
            "key_tenant": attempt.tenant,
            "key_workflow_id": attempt.workflow_id,
            "list_nanos": list_nanos or 0,
            "tokens": tokens,
            "release_list_nanos": attempt.reserved_list_nanos,
            "release_tokens": attempt.reserved_tokens,
            "updated_at": now(),
            **(head or {}),
        },
    )


def _check_closed(connection: Connection, end: AttemptEnd) -> None:
    row = _attempt_row(connection, end.attempt_id)
    if row is None:
        raise InternalError(f"attempt {end.attempt_id} was never opened", attempt_id=end.attempt_id)
    if row.state != end.state.value:
        raise RuntimeLost(
            f"step {end.step_id} was closed as {row.state} by another runtime, which took this one for dead; "
            "repeat the request",
            step_id=end.step_id,
            state=row.state,
        )


def _attempt_row(connection: Connection, attempt_id: str) -> Row[Any] | None:
    return connection.execute(ATTEMPT_STATE, {"key_attempt_id": attempt_id}).one_or_none()


def close_queued(step_id: str, state: StepState, error_reason: str, error_message: str) -> Operation[None]:
    """Close a step that waits for its attempt; one that ended already is left as it is."""
    statement = (
        update(steps)
        .where(steps.c.step_id == step_id, steps.c.state == StepState.QUEUED.value)
        .values(state=state.value, error_reason=error_reason, error_message=error_message, ended_at=now())
    )

    def run(connection: Connection) -> None:
        if connection.execute(statement).rowcount:
            return
        if connection.execute(select(steps.c.step_id).where(steps.c.step_id == step_id)).scalar() is None:
            raise StepNotFound(f"there is no step {step_id}", step_id=step_id)

    return Operation(run)


def checkpoint(checkpoints: list[AttemptCheckpoint]) -> Operation[None]:
    """Note what running attempts have used; those that ended meanwhile are left as they are."""
    moment = now()
    rows = [
        {
            "key_attempt_id": item.attempt_id,
            "checkpointed_at": moment,
            **usage_values(item.usage, UsageSource.CHECKPOINT),
            **speculation_values(item.speculation),
            **cost_values(item.cost),
        }
        for item in checkpoints
    ]

    def run(connection: Connection) -> None:
        if rows:
            connection.execute(CHECKPOINT, rows)

    return Operation(run)
