"""Rows to domain objects and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Row

from paceline.ledger.reuse_rows import reuse_from_row, reuse_values
from paceline.routing.pools import PoolChoice, PoolReason
from paceline.transcript.fingerprint import KEY_SIZE
from paceline.workflow.chain import ChainLink
from paceline.workflow.model import (
    CallRef,
    Cost,
    FinishReason,
    Message,
    OutputFlag,
    Segments,
    Speculation,
    Step,
    StepState,
    Timings,
    Tool,
    Usage,
    UsageSource,
    WorkflowMatch,
)
from paceline.workflow.ports import AttemptEnd, NewAttempt

Values = dict[str, Any]
Preamble = tuple[str, tuple[Tool, ...]]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MILLION = 1_000_000

_messages = msgspec.json.Decoder(tuple[Message, ...])
_message = msgspec.json.Decoder(Message)
_calls = msgspec.json.Decoder(tuple[CallRef, ...])
_flags = msgspec.json.Decoder(tuple[OutputFlag, ...])
_tools = msgspec.json.Decoder(tuple[Tool, ...])


def to_json(value: object) -> str:
    """Write a domain value as JSON text."""
    return msgspec.json.encode(value).decode()


def tools_from_json(stored: str) -> tuple[Tool, ...]:
    """Read tool definitions."""
    return _tools.decode(stored)


def to_microseconds(moment: datetime) -> int:
    """UTC microseconds since 1970 of an aware datetime."""
    return (moment - EPOCH) // MICROSECOND


def from_microseconds(moment: int) -> datetime:
    """The aware datetime of UTC microseconds since 1970."""
    return EPOCH + moment * MICROSECOND


def optional_moment(microseconds: int | None) -> datetime | None:
    """The same of a value that may be missing."""
    return None if microseconds is None else from_microseconds(microseconds)


def now() -> int:
    """This moment in UTC microseconds."""
    return to_microseconds(datetime.now(UTC))


def preamble_values(step: Step) -> Values | None:
    """The row that keeps the system prompt and tools in force; None where there are none."""
    if not step.system and not step.tools:
        return None
    tools = to_json(step.tools)
    content = "\0".join((step.tenant, step.system, tools))
    return {
        "preamble_id": hashlib.sha256(content.encode()).hexdigest(),
        "system": step.system,
        "tools": tools,
    }


def preamble_from_row(row: Row[Any]) -> Preamble:
    """System prompt and tools."""
    return row.system, tools_from_json(row.tools)


def step_values(step: Step, attempt: NewAttempt | None) -> Values:
    """The row of a new step."""
    return {
        "step_id": step.step_id,
        "tenant": step.tenant,
        "workflow_id": step.workflow_id,
        "request_id": step.request_id,
        "request_hash": step.request_hash,
        "parent_step_id": step.parent_step_id,
        "preamble_id": None,
        "state": StepState.RUNNING.value if attempt else StepState.QUEUED.value,
        "runtime_id": step.runtime_id,
        "input": to_json(step.input),
        "chain_hash": step.chain_hash,
        "workflow_match": step.match and step.match.value,
        "malformed_tool_calls": 0,
        "attempt_count": attempt.number if attempt else 0,
        "last_attempt_id": attempt.attempt_id if attempt else None,
        "error_reason": "",
        "error_message": "",
        "created_at": to_microseconds(step.created_at) if step.created_at else now(),
    }


def attempt_values(attempt: NewAttempt, tenant: str) -> Values:
    """The row of a new attempt."""
    return {
        "attempt_id": attempt.attempt_id,
        "step_id": attempt.step_id,
        "tenant": tenant,
        "workflow_id": attempt.workflow_id,
        "number": attempt.number,
        "replica": attempt.replica,
        "runtime_id": attempt.runtime_id,
        "state": StepState.RUNNING.value,
        "error_reason": "",
        "prompt_tokens": attempt.prompt_tokens,
        "reserved_list_nanos": attempt.reservation.list_nanos,
        "reserved_tokens": attempt.reservation.tokens,
        "speculation_profile": attempt.speculation_profile,
        **pool_values(attempt.pool),
        "dispatched_at": to_microseconds(attempt.dispatched_at),
        **cost_values(attempt.cost),
    }


def usage_values(usage: Usage, source: UsageSource | None = None) -> Values:
    """The usage columns of an attempt; `source` replaces the sources of what is reported."""
    prompt, output = usage.prompt_source, usage.output_source
    if source is not None:
        prompt, output = prompt and source, output and source
    return {
        "uncached_prompt_tokens": usage.uncached_prompt,
        "cached_prompt_tokens": usage.cached_prompt,
        "cache_write_tokens": usage.cache_writes,
        "output_tokens": usage.output,
        "reasoning_tokens": usage.reasoning,
        "prompt_source": prompt and prompt.value,
        "output_source": output and output.value,
    }


def speculation_values(speculation: Speculation) -> Values:
    """The speculation columns of an attempt."""
    return {
        "speculation_profile": speculation.profile,
        "drafted_tokens": speculation.drafted,
        "accepted_tokens": speculation.accepted,
        "mean_acceptance_length": speculation.mean_acceptance_length,
        "draft_steps": speculation.draft_steps,
    }


def pool_values(pool: PoolChoice | None) -> Values:
    """The columns of an attempt about the choice of its pool; its profile is the attempt's."""
    return {
        "pool_choice": pool and pool.reason.value,
        "pool_saving_us": pool and _duration(pool.saving_seconds),
        "pool_prefill_us": pool and _duration(pool.prefill_seconds),
    }


def cost_values(cost: Cost) -> Values:
    """The cost columns of an attempt."""
    return {
        "list_nanos": cost.list_nanos,
        "infrastructure_nanos": cost.infrastructure_nanos,
        "price_name": cost.price_name,
        "example_price": cost.example_price,
    }


def attempt_end_values(end: AttemptEnd) -> Values:
    """The columns of `attempts` that its end sets."""
    return {
        "state": end.state.value,
        "error_reason": end.error_reason,
        **usage_values(end.usage),
        **speculation_values(end.speculation),
        **cost_values(end.cost),
        "queue_us": _duration(end.timings.queue),
        "first_token_us": _duration(end.timings.first_token),
        "decode_us": _duration(end.timings.decode),
        "total_us": _duration(end.timings.total),
        "accelerator_us": _duration(end.accelerator_seconds),
        "step_class": end.step_class,
        "ended_at": to_microseconds(end.ended_at),
    }


def step_end_values(end: AttemptEnd) -> Values:
    """The columns of `steps` that its end sets."""
    segments = end.segments
    return {
        "state": end.state.value,
        "output": to_json(end.output) if end.output else None,
        "message_keys": b"".join(end.keys) if end.keys is not None else None,
        "calls": to_json(end.calls) if end.calls else None,
        "chain_hash": end.chain_hash,
        "malformed_tool_calls": end.malformed_tool_calls,
        "output_flags": to_json(end.output_flags) if end.output_flags else None,
        "finish_reason": end.finish_reason and end.finish_reason.value,
        "carried_tokens": segments and segments.carried,
        "rendered_ids": segments and segments.rendered,
        "generated_ids": segments and segments.generated,
        "tokenizer_hash": segments and segments.tokenizer_hash,
        "template_hash": segments and segments.template_hash,
        "model_hash": segments and segments.model_hash,
        **reuse_values(end.reuse),
        "error_reason": end.error_reason,
        "error_message": end.error_message,
        "ended_at": to_microseconds(end.ended_at),
    }


def step_from_row(row: Row[Any], preambles: Mapping[str | None, Preamble]) -> Step:
    """The step of a row of `reads.STEPS`."""
    system, tools = preambles[row.preamble_id]
    return Step(
        step_id=row.step_id,
        workflow_id=row.workflow_id,
        tenant=row.tenant,
        request_id=row.request_id,
        request_hash=row.request_hash,
        state=StepState(row.state),
        input=_messages.decode(row.input),
        system=system,
        tools=tools,
        parent_step_id=row.parent_step_id,
        output=_message.decode(row.output) if row.output is not None else None,
        chain_hash=bytes(row.chain_hash) if row.chain_hash is not None else None,
        match=WorkflowMatch(row.workflow_match) if row.workflow_match else None,
        malformed_tool_calls=row.malformed_tool_calls,
        output_flags=_flags.decode(row.output_flags) if row.output_flags else (),
        segments=_segments(row),
        finish_reason=FinishReason(row.finish_reason) if row.finish_reason else None,
        usage=_usage(row),
        reuse=reuse_from_row(row),
        speculation=_speculation(row),
        step_class=row.step_class,
        pool=_pool(row),
        timings=_timings(row),
        cost=_cost(row),
        attempt_count=row.attempt_count,
        error_reason=row.error_reason,
        error_message=row.error_message,
        replica=row.replica or "",
        runtime_id=row.runtime_id,
        created_at=from_microseconds(row.created_at),
        ended_at=optional_moment(row.ended_at),
    )


def _segments(row: Row[Any]) -> Segments | None:
    if row.rendered_ids is None:
        return None
    return Segments(
        row.carried_tokens,
        bytes(row.rendered_ids),
        bytes(row.generated_ids),
        row.tokenizer_hash,
        row.template_hash,
        row.model_hash or "",
    )


def _keys(stored: bytes | None) -> tuple[bytes, ...] | None:
    if stored is None:
        return None
    return tuple(bytes(stored[at : at + KEY_SIZE]) for at in range(0, len(stored), KEY_SIZE))


def link_from_row(row: Any, preamble: Preamble) -> ChainLink:
    """The link of a row of `reads.LINKS`."""
    system, tools = preamble
    return ChainLink(
        step_id=row.step_id,
        workflow_id=row.workflow_id,
        parent_step_id=row.parent_step_id,
        state=StepState(row.state),
        segments=_segments(row),
        keys=_keys(row.message_keys),
        calls=_calls.decode(row.calls) if row.calls else (),
        system=system,
        tools=tools,
        reasoning_tokens=row.reasoning_tokens or 0,
        kept_reasoning_tokens=row.reuse_kept_reasoning_tokens or 0,
        replica=row.replica or "",
        tokens=None if row.reuse_prompt_tokens is None else row.reuse_prompt_tokens + (row.output_tokens or 0),
    )


def _usage(row: Row[Any]) -> Usage:
    return Usage(
        uncached_prompt=row.uncached_prompt_tokens,
        cached_prompt=row.cached_prompt_tokens,
        cache_writes=row.cache_write_tokens,
        output=row.output_tokens,
        reasoning=row.reasoning_tokens,
        prompt_source=UsageSource(row.prompt_source) if row.prompt_source else None,
        output_source=UsageSource(row.output_source) if row.output_source else None,
    )


def _speculation(row: Row[Any]) -> Speculation:
    return Speculation(
        row.speculation_profile or "",
        row.drafted_tokens,
        row.accepted_tokens,
        row.mean_acceptance_length,
        row.draft_steps,
    )


def _pool(row: Row[Any]) -> PoolChoice | None:
    if row.pool_choice is None:
        return None
    terms = _seconds(row.pool_saving_us), _seconds(row.pool_prefill_us)
    return PoolChoice(row.speculation_profile, PoolReason(row.pool_choice), *terms)


def _timings(row: Row[Any]) -> Timings | None:
    if row.total_us is None:
        return None
    return Timings(
        row.queue_us / MILLION, _seconds(row.first_token_us), _seconds(row.decode_us), row.total_us / MILLION
    )


def _cost(row: Row[Any]) -> Cost:
    return Cost(row.list_nanos, row.infrastructure_nanos, row.price_name or "", bool(row.example_price))


def _duration(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * MILLION)


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / MILLION
