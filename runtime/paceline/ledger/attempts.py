"""Writes of steps and attempts, each as an `Operation` for the writer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from paceline.errors import RequestIdReused, RuntimeLost, StepNotFound, WorkflowBusy
from paceline.ledger.budgets import reserve
from paceline.ledger.rows import (
    Values,
    attempt_end_values,
    attempt_values,
    cost_values,
    now,
    preamble_values,
    speculation_values,
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
    SETTLE,
    SETTLE_AND_ADVANCE,
    START_STEP,
)
from paceline.ledger.tables import steps
from paceline.ledger.writer import Operation
from paceline.workflow.model import Step, StepState, Usage, UsageSource
from paceline.workflow.ports import AttemptCheckpoint, AttemptEnd, NewAttempt, Reservation

_RETRYABLE = (StepState.FAILED.value, StepState.CANCELLED.value)


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
            INSERT_PREAMBLE[connection.dialect.name].run(connection, preamble)
        INSERT_STEP.run(connection, row)
        if attempt_row:
            INSERT_ATTEMPT.run(connection, attempt_row)

    return Operation(run, partial(_explain_open, step, attempt))


def _explain_open(step: Step, attempt: NewAttempt | None, connection: Connection) -> None:
    owner = select(steps.c.step_id).where(steps.c.tenant == step.tenant, steps.c.request_id == step.request_id)
    known = connection.execute(owner).scalar()
    if known == step.step_id and (attempt is None or _attempt_state(connection, attempt.attempt_id)):
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
        started = START_STEP.run(connection, start).fetchone()
        if started is None:
            _check_started(connection, attempt)
            return
        (tenant,) = started
        reserve(connection, tenant, attempt.workflow_id, attempt.reservation, steps=0)
        INSERT_ATTEMPT.run(connection, attempt_values(attempt, tenant))

    return Operation(run)


def _check_started(connection: Connection, attempt: NewAttempt) -> None:
    """Accept an attempt that an earlier run has opened; raise for any other step that cannot start."""
    if _attempt_state(connection, attempt.attempt_id):
        return
    state = connection.execute(select(steps.c.state).where(steps.c.step_id == attempt.step_id)).scalar()
    if state is None:
        raise StepNotFound(f"there is no step {attempt.step_id}", step_id=attempt.step_id)
    raise WorkflowBusy(f"step {attempt.step_id} is {state} already", step_id=attempt.step_id, state=state)


def requeue_step(step: Step) -> Operation[bool]:
    """Take over an ended step; True if this runtime has it, by an earlier run, too."""
    preamble = preamble_values(step)
    statement = (
        update(steps)
        .where(steps.c.step_id == step.step_id, steps.c.state.in_(_RETRYABLE))
        .values(
            state=StepState.QUEUED.value,
            runtime_id=step.runtime_id,
            preamble_id=preamble and preamble["preamble_id"],
            error_reason="",
            error_message="",
            ended_at=None,
        )
    )
    queued = select(steps.c.step_id).where(
        steps.c.step_id == step.step_id,
        steps.c.state == StepState.QUEUED.value,
        steps.c.runtime_id == step.runtime_id,
    )

    def run(connection: Connection) -> bool:
        if preamble:
            INSERT_PREAMBLE[connection.dialect.name].run(connection, preamble)
        return connection.execute(statement).rowcount == 1 or connection.execute(queued).scalar() is not None

    return Operation(run)


def close_attempt(end: AttemptEnd) -> Operation[None]:
    """Close an attempt and its step, settle the budget, and move the head if it finished."""
    ended: Values = {"key_attempt_id": end.attempt_id, **attempt_end_values(end)}
    step: Values = {"key_step_id": end.step_id, **step_end_values(end)}

    def run(connection: Connection) -> None:
        closed = END_ATTEMPT.run(connection, ended).fetchone()
        if closed is None:
            _check_closed(connection, end)
            return
        END_STEP.run(connection, step)
        dispatched = Dispatched(*closed)
        tokens = dispatched.spent_tokens(end.usage)
        head = {"head_step_id": end.step_id, "replica": end.replica} if end.state is StepState.FINISHED else None
        settle(connection, dispatched, end.cost.list_nanos, tokens, head)

    return Operation(run)


class Dispatched(NamedTuple):
    """What closing an attempt needs to know of its opening."""

    tenant: str
    workflow_id: str
    prompt_tokens: int
    reserved_list_nanos: int
    reserved_tokens: int

    def spent_tokens(self, usage: Usage) -> int:
        """Tokens that count against the budget: where the prompt was only partly reported, all of it."""
        reported = usage.uncached_prompt is not None or usage.cached_prompt is not None
        counted = (usage.uncached_prompt or 0) + (usage.cached_prompt or 0)
        return (max(counted, self.prompt_tokens) if reported else 0) + (usage.output or 0)


def settle(
    connection: Connection, attempt: Dispatched, list_nanos: int | None, tokens: int, head: Values | None
) -> None:
    """Release the reservation of an attempt and add what it spent; `head` moves the workflow's head."""
    statement = SETTLE_AND_ADVANCE if head else SETTLE
    statement.run(
        connection,
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
    state = _attempt_state(connection, end.attempt_id)
    if state is None:
        raise StepNotFound(f"attempt {end.attempt_id} was never opened", attempt_id=end.attempt_id)
    if state != end.state.value:
        raise RuntimeLost(
            f"step {end.step_id} was closed as {state} by another runtime, which took this one for dead; "
            "repeat the request",
            step_id=end.step_id,
            state=state,
        )


def _attempt_state(connection: Connection, attempt_id: str) -> str | None:
    return connection.execute(ATTEMPT_STATE, {"key_attempt_id": attempt_id}).scalar()


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
    rows: list[Mapping[str, object]] = [
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
            CHECKPOINT.run_many(connection, rows)

    return Operation(run)
