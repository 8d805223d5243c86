"""The statements of the hot path, built once so that SQLAlchemy compiles each once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from paceline.ledger.tables import attempts, preambles, steps, workflows
from paceline.workflow.model import StepState

RUNNING = StepState.RUNNING.value
STARTABLE = (StepState.QUEUED.value, StepState.FAILED.value, StepState.CANCELLED.value)
RETRYABLE = (StepState.FAILED.value, StepState.CANCELLED.value)


def _set(table: Table, *names: str) -> dict[str, ColumnElement[Any]]:
    return {name: bindparam(name, type_=table.c[name].type) for name in names}


def _fits(limit: str, spent: ColumnElement[int], needed: str) -> ColumnElement[bool]:
    column = workflows.c[limit]
    return or_(column.is_(None), spent + bindparam(needed) <= column)


def _this_workflow() -> ColumnElement[bool]:
    return and_(
        workflows.c.tenant == bindparam("key_tenant"), workflows.c.workflow_id == bindparam("key_workflow_id")
    )


_w = workflows.c

RESERVE: Update = (
    update(workflows)
    .where(
        _this_workflow(),
        _w.outcome_kind.is_(None),
        _fits("budget_list_nanos", _w.spent_list_nanos + _w.reserved_list_nanos, "list_nanos"),
        _fits("budget_tokens", _w.spent_tokens + _w.reserved_tokens, "tokens"),
        _fits("budget_steps", _w.spent_steps, "steps"),
    )
    .values(
        reserved_list_nanos=_w.reserved_list_nanos + bindparam("list_nanos"),
        reserved_tokens=_w.reserved_tokens + bindparam("tokens"),
        spent_steps=_w.spent_steps + bindparam("steps"),
        updated_at=bindparam("updated_at"),
    )
)
"""Reserves a step's worst case if the workflow is open and its budget allows; else no row matches."""

SETTLE: Update = (
    update(workflows)
    .where(_this_workflow())
    .values(
        spent_list_nanos=_w.spent_list_nanos + bindparam("list_nanos"),
        spent_tokens=_w.spent_tokens + bindparam("tokens"),
        reserved_list_nanos=_w.reserved_list_nanos - bindparam("release_list_nanos"),
        reserved_tokens=_w.reserved_tokens - bindparam("release_tokens"),
        updated_at=bindparam("updated_at"),
    )
)
"""Turns a reservation into what was really spent."""

SETTLE_AND_ADVANCE: Update = SETTLE.values(_set(workflows, "head_step_id", "replica"))
"""The same, and the head moves."""

INSERT_STEP: Insert = insert(steps)
INSERT_ATTEMPT: Insert = insert(attempts)
INSERT_PREAMBLE: dict[str, Insert] = {
    "sqlite": sqlite.insert(preambles).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(preambles).on_conflict_do_nothing(),
}

START_STEP: Update = (
    update(steps)
    .where(steps.c.step_id == bindparam("key_step_id"), steps.c.state.in_(STARTABLE))
    .values(
        **_set(steps, "runtime_id", "attempt_count", "last_attempt_id"),
        state=literal(RUNNING),
        error_reason=literal(""),
        error_message=literal(""),
        ended_at=None,
    )
    .returning(steps.c.tenant)
)

END_ATTEMPT: Update = (
    update(attempts)
    .where(attempts.c.attempt_id == bindparam("key_attempt_id"), attempts.c.state == RUNNING)
    .values(
        _set(
            attempts,
            *("state", "error_reason", "uncached_prompt_tokens", "cached_prompt_tokens", "cache_write_tokens"),
            *("output_tokens", "reasoning_tokens", "prompt_source", "output_source", "speculation_profile"),
            *("drafted_tokens", "accepted_tokens", "mean_acceptance_length", "queue_us", "first_token_us"),
            *("decode_us", "total_us", "accelerator_us", "list_nanos", "infrastructure_nanos", "price_name"),
            *("example_price", "ended_at"),
        )
    )
    .returning(
        attempts.c.tenant,
        attempts.c.workflow_id,
        attempts.c.prompt_tokens,
        attempts.c.reserved_list_nanos,
        attempts.c.reserved_tokens,
    )
)

END_STEP: Update = (
    update(steps)
    .where(steps.c.step_id == bindparam("key_step_id"))
    .values(
        _set(
            steps,
            *("state", "output", "malformed_tool_calls", "finish_reason", "carried_tokens", "rendered_ids"),
            *("generated_ids", "tokenizer_hash", "template_hash", "reuse_prompt_tokens", "reuse_carried_tokens"),
            *("reuse_rendered_tokens", "reuse_break", "error_reason", "error_message", "ended_at"),
        )
    )
)

CHECKPOINT: Update = (
    update(attempts)
    .where(attempts.c.attempt_id == bindparam("key_attempt_id"), attempts.c.state == RUNNING)
    .values(
        _set(
            attempts,
            *("uncached_prompt_tokens", "cached_prompt_tokens", "cache_write_tokens", "output_tokens"),
            *("reasoning_tokens", "prompt_source", "output_source", "speculation_profile", "drafted_tokens"),
            *("accepted_tokens", "mean_acceptance_length", "list_nanos", "infrastructure_nanos", "price_name"),
            *("example_price", "checkpointed_at"),
        )
    )
)

ATTEMPT_STATE: Select[Any] = select(attempts.c.state, attempts.c.step_id).where(
    attempts.c.attempt_id == bindparam("key_attempt_id")
)
