"""The types of this package, made from the messages of `paceline.v1`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, TypeVar

from google.protobuf.message import Message

from paceline.v1 import cost_service_pb2, message_pb2, step_pb2, step_service_pb2, usage_pb2, workflow_pb2
from paceline_agents import types as t

V = TypeVar("V")


def event(response: step_service_pb2.RunStepResponse, step_id: str) -> t.Event | None:
    """One event of the stream of a step; None for a kind that this version does not know."""
    match response.WhichOneof("event"):
        case "started":
            found: t.Event | None = _started(response.started)
        case "progress":
            found = _progress(response.progress)
        case "reasoning_delta":
            found = t.ReasoningDelta(response.reasoning_delta.text)
        case "text_delta":
            found = t.TextDelta(response.text_delta.text)
        case "tool_call":
            found = t.ToolCallReady(_tool_call(response.tool_call))
        case "finished":
            found = t.Finished(_answer(step_id, response.finished, response.finished.message))
        case None:
            found = None
    return found


def _started(message: step_service_pb2.StepStarted) -> t.Started:
    return t.Started(
        step_id=message.step_id,
        workflow_id=message.workflow_id,
        request_id=message.request_id,
        replayed=message.replayed,
        attached=message.attached,
        match=_enum_text(message, "match"),
    )


def _progress(message: step_service_pb2.StepProgress) -> t.Progress:
    waited = message.waited.ToTimedelta().total_seconds()
    return t.Progress(_enum_text(message, "phase"), message.queue_position, waited)


def step(message: step_pb2.Step) -> t.Step:
    """A stored step."""
    finished = message.state == step_pb2.STEP_STATE_FINISHED
    return t.Step(
        step_id=message.step_id,
        workflow_id=message.workflow_id,
        parent_step_id=message.parent_step_id,
        request_id=message.request_id,
        state=_enum_text(message, "state"),
        answer=_answer(message.step_id, message, message.output) if finished else None,
        attempt_count=message.attempt_count,
        error_reason=message.error_reason,
        step_class=message.step_class,
        pool_choice=_pool_choice(message.pool_choice) if message.HasField("pool_choice") else None,
        match=_enum_text(message, "match"),
    )


def _pool_choice(message: step_pb2.PoolChoice) -> t.PoolChoice:
    return t.PoolChoice(
        _enum_text(message, "reason"),
        message.decode_saving.ToTimedelta().total_seconds() if message.HasField("decode_saving") else None,
        message.prefill.ToTimedelta().total_seconds() if message.HasField("prefill") else None,
    )


def failure(message: step_service_pb2.StepFailure) -> t.StepFailure:
    """What a failed step had cost."""
    return t.StepFailure(message.step_id, _usage(message.usage), _cost(message.cost))


def workflow(message: workflow_pb2.Workflow) -> t.Workflow:
    """A workflow."""
    outcome = message.outcome
    return t.Workflow(
        workflow_id=message.workflow_id,
        model=message.model,
        parent_workflow_id=message.parent_workflow_id,
        forked_step_id=message.forked_step_id,
        head_step_id=message.head_step_id,
        transcript_policy=_enum_text(message, "transcript_policy"),
        labels=dict(message.labels),
        outcome=_outcome(outcome) if message.HasField("outcome") else None,
        created_at=_time(message, "create_time"),
        updated_at=_time(message, "update_time"),
        store=_enum_text(message, "store"),
        retention=message.retention.ToTimedelta() if message.HasField("retention") else None,
        content_deleted_at=_time(message, "content_delete_time"),
    )


def cost_summary(message: cost_service_pb2.CostSummary) -> t.CostSummary:
    """Sums of costs."""
    per_success = message.cost_per_success_usd_nanos
    return t.CostSummary(
        workflows=message.workflow_count,
        succeeded_workflows=message.succeeded_workflow_count,
        known_outcome_workflows=message.known_outcome_workflow_count,
        steps=message.step_count,
        attempts=message.attempt_count,
        uncached_prompt_tokens=message.uncached_prompt_token_count,
        cached_prompt_tokens=message.cached_prompt_token_count,
        output_tokens=message.output_token_count,
        drafted_tokens=message.drafted_token_count,
        accepted_tokens=message.accepted_draft_token_count,
        unreported_attempts=message.unreported_attempt_count,
        list_nanos=message.list_cost_usd_nanos,
        retry_nanos=message.retry_cost_usd_nanos,
        infrastructure_nanos=_reported(
            message, "infrastructure_cost_usd_nanos", message.infrastructure_cost_usd_nanos
        ),
        cost_per_success_nanos=per_success if message.HasField("cost_per_success_usd_nanos") else None,
        example_price=message.example_price,
        mean_acceptance_length=_reported(message, "mean_acceptance_length", message.mean_acceptance_length),
    )


def _answer(
    step_id: str, end: step_service_pb2.StepFinished | step_pb2.Step, message: message_pb2.Message
) -> t.Answer:
    malformed = end.malformed_tool_call_count if isinstance(end, step_service_pb2.StepFinished) else None
    return t.Answer(
        step_id=step_id,
        text=message.content,
        finish_reason=_enum_text(end, "finish_reason"),
        reasoning=message.reasoning,
        tool_calls=tuple(_tool_call(call) for call in message.tool_calls),
        usage=_usage(end.usage),
        reuse=_reuse(end.reuse),
        speculation=_speculation(end.speculation),
        timings=_timings(end.timings),
        cost=_cost(end.cost),
        malformed_tool_calls=malformed,
        replica=end.replica,
        output_flags=tuple(_value_text(end, "output_flags", flag) for flag in end.output_flags),
    )


def _tool_call(call: message_pb2.ToolCall) -> t.ToolCall:
    return t.ToolCall(call.tool_call_id, call.tool_name, call.arguments_json, call.defect)


def _usage(usage: usage_pb2.Usage) -> t.Usage:
    return t.Usage(
        uncached_prompt=_reported(usage, "uncached_prompt_token_count", usage.uncached_prompt_token_count),
        cached_prompt=_reported(usage, "cached_prompt_token_count", usage.cached_prompt_token_count),
        cache_writes=_reported(usage, "cache_write_token_count", usage.cache_write_token_count),
        output=_reported(usage, "output_token_count", usage.output_token_count),
        reasoning=_reported(usage, "reasoning_token_count", usage.reasoning_token_count),
        prompt_source=_enum_text(usage, "prompt_source"),
        output_source=_enum_text(usage, "output_source"),
    )


def _speculation(message: usage_pb2.Speculation) -> t.Speculation:
    return t.Speculation(
        profile=message.profile,
        drafted=_reported(message, "drafted_token_count", message.drafted_token_count),
        accepted=_reported(message, "accepted_draft_token_count", message.accepted_draft_token_count),
        mean_acceptance_length=_reported(message, "mean_acceptance_length", message.mean_acceptance_length),
        draft_steps=_reported(message, "draft_step_count", message.draft_step_count),
    )


def _reuse(message: usage_pb2.Reuse) -> t.Reuse:
    return t.Reuse(
        prompt_tokens=message.prompt_token_count,
        carried_tokens=message.carried_token_count,
        rendered_tokens=message.rendered_token_count,
        break_reason=_enum_text(message, "break_reason"),
        break_message=_reported(message, "break_message_index", message.break_message_index),
        dropped_tokens=_reported(message, "dropped_token_count", message.dropped_token_count),
        kept_reasoning_tokens=_reported(message, "kept_reasoning_token_count", message.kept_reasoning_token_count),
        volatile_blocks=_reported(message, "volatile_block_count", message.volatile_block_count),
    )


def _timings(message: usage_pb2.Timings) -> t.Timings:
    return t.Timings(
        queue=_seconds(message, "queue") or 0.0,
        first_token=_seconds(message, "first_token"),
        decode=_seconds(message, "decode"),
        total=_seconds(message, "total") or 0.0,
    )


def _cost(message: usage_pb2.Cost) -> t.Cost:
    infrastructure = message.infrastructure_cost_usd_nanos
    return t.Cost(
        list_nanos=_reported(message, "list_cost_usd_nanos", message.list_cost_usd_nanos),
        infrastructure_nanos=_reported(message, "infrastructure_cost_usd_nanos", infrastructure),
        price_name=message.price_name,
        example_price=message.example_price,
    )


def _outcome(message: workflow_pb2.Outcome) -> t.Outcome:
    return t.Outcome(
        kind=t.OutcomeKind(_enum_text(message, "kind")),
        source=t.OutcomeSource(_enum_text(message, "source")),
        check_exit_code=_reported(message, "check_exit_code", message.check_exit_code),
        note=message.note,
    )


def _reported(message: Message, name: str, value: V) -> V | None:
    return value if message.HasField(name) else None


def _seconds(message: usage_pb2.Timings, name: Literal["queue", "first_token", "decode", "total"]) -> float | None:
    return getattr(message, name).ToTimedelta().total_seconds() if message.HasField(name) else None


def _time(
    message: workflow_pb2.Workflow, name: Literal["create_time", "update_time", "content_delete_time"]
) -> datetime | None:
    return getattr(message, name).ToDatetime(tzinfo=UTC) if message.HasField(name) else None


def _enum_text(message: Message, name: str) -> str:
    """`FINISH_REASON_STOP` as `stop`, unspecified as empty text, a value of a newer server as its number."""
    return _value_text(message, name, getattr(message, name))


def _value_text(message: Message, name: str, number: int) -> str:
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    assert enum is not None, f"{name} is no enum"  # noqa: S101 - a mistake of this module, not of a caller
    values = enum.values_by_number
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    if number == 0:
        return ""
    return values[number].name.removeprefix(prefix).lower() if number in values else str(number)
