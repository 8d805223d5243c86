"""The statements of the hot path."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Table, and_, bindparam, func, insert, literal_column, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from paceline.ledger.hot import HotStatement
from paceline.ledger.tables import attempts, preambles, steps, workflows

_RUNNING: ColumnElement[str] = literal_column("'running'")
_STARTABLE: tuple[ColumnElement[str], ...] = (
    literal_column("'queued'"),
    literal_column("'failed'"),
    literal_column("'cancelled'"),
)
_EMPTY: ColumnElement[str] = literal_column("''")

_USAGE = (
    *("uncached_prompt_tokens", "cached_prompt_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens"),
    *("prompt_source", "output_source"),
)
_SPECULATION = (
    "speculation_profile",
    "drafted_tokens",
    "accepted_tokens",
    "mean_acceptance_length",
    "draft_steps",
)
_COST = ("list_nanos", "infrastructure_nanos", "price_name", "example_price")


def _set(table: Table, *names: str) -> dict[str, ColumnElement[Any]]:
    return {name: bindparam(name, type_=table.c[name].type) for name in names}


def _fits(limit: str, spent: ColumnElement[int], needed: str) -> ColumnElement[bool]:
    column = workflows.c[limit]
    return or_(column.is_(None), spent + bindparam(needed) <= column)


def _this_workflow() -> ColumnElement[bool]:
    return and_(
        workflows.c.tenant == bindparam("key_tenant"), workflows.c.workflow_id == bindparam("key_workflow_id")
    )


def _this_running_attempt() -> ColumnElement[bool]:
    return and_(attempts.c.attempt_id == bindparam("key_attempt_id"), attempts.c.state == _RUNNING)


_w = workflows.c

RESERVE = HotStatement(
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

_settle = (
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
SETTLE = HotStatement(_settle)
"""Turns a reservation into what was really spent."""

SETTLE_AND_ADVANCE = HotStatement(_settle.values(_set(workflows, "head_step_id", "replica")))
"""The same, and the head moves."""

INSERT_STEP = HotStatement(
    insert(steps),
    (
        *("step_id", "tenant", "workflow_id", "request_id", "request_hash", "parent_step_id", "preamble_id"),
        *("state", "runtime_id", "input", "malformed_tool_calls", "attempt_count", "last_attempt_id"),
        *("chain_hash", "workflow_match"),
        *("error_reason", "error_message", "created_at"),
    ),
)
INSERT_ATTEMPT = HotStatement(
    insert(attempts),
    (
        *("attempt_id", "step_id", "tenant", "workflow_id", "number", "replica", "runtime_id", "state"),
        *("error_reason", "prompt_tokens", "reserved_list_nanos", "reserved_tokens", "speculation_profile"),
        *("pool_choice", "pool_saving_us", "pool_prefill_us"),
        *_COST,
        "dispatched_at",
    ),
)
_preamble = ("preamble_id", "system", "tools")
INSERT_PREAMBLE = {
    "sqlite": HotStatement(sqlite.insert(preambles).on_conflict_do_nothing(), _preamble),
    "postgresql": HotStatement(postgresql.insert(preambles).on_conflict_do_nothing(), _preamble),
}

START_STEP = HotStatement(
    update(steps)
    .where(steps.c.step_id == bindparam("key_step_id"), steps.c.state.in_(_STARTABLE))
    .values(
        **_set(steps, "runtime_id", "attempt_count", "last_attempt_id"),
        state=_RUNNING,
        error_reason=_EMPTY,
        error_message=_EMPTY,
        ended_at=literal_column("NULL"),
    )
    .returning(steps.c.tenant)
)

END_ATTEMPT = HotStatement(
    update(attempts)
    .where(_this_running_attempt())
    .values(
        _set(
            attempts,
            *("state", "error_reason", *_USAGE, *_SPECULATION, *_COST, "queue_us", "first_token_us", "decode_us"),
            *("total_us", "accelerator_us", "step_class", "ended_at"),
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

END_STEP = HotStatement(
    update(steps)
    .where(steps.c.step_id == bindparam("key_step_id"))
    .values(
        **_set(
            steps,
            *("state", "output", "malformed_tool_calls", "finish_reason", "carried_tokens", "rendered_ids"),
            *("generated_ids", "tokenizer_hash", "template_hash", "reuse_prompt_tokens", "reuse_carried_tokens"),
            *("reuse_rendered_tokens", "reuse_break", "reuse_break_message", "reuse_dropped_tokens"),
            *("reuse_kept_reasoning_tokens", "reuse_volatile_blocks", "error_reason", "error_message", "ended_at"),
            *("message_keys", "calls", "output_flags", "model_hash", "reuse_block_tokens"),
        ),
        chain_hash=func.coalesce(bindparam("chain_hash", type_=steps.c.chain_hash.type), steps.c.chain_hash),
    )
)

CHECKPOINT = HotStatement(
    update(attempts)
    .where(_this_running_attempt())
    .values(_set(attempts, *_USAGE, *_SPECULATION, *_COST, "checkpointed_at"))
)

ATTEMPT_STATE = select(attempts.c.state).where(attempts.c.attempt_id == bindparam("key_attempt_id"))
