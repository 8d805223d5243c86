"""Conversion keeps every value."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidArgument, InvalidMessage
from paceline.rpc.convert import costs, messages, steps, usage, values, workflows
from paceline.v1 import cost_service_pb2, message_pb2, step_pb2, step_service_pb2, usage_pb2, workflow_pb2
from paceline.workflow import events
from paceline.workflow.costs import CostSummary
from paceline.workflow.model import (
    Budget,
    Cost,
    Message,
    Outcome,
    Reuse,
    ReuseBreak,
    Sampling,
    Speculation,
    Step,
    StorePolicy,
    Timings,
    Tool,
    Usage,
    UsageSource,
    Workflow,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False)
MOMENT = st.datetimes(timezones=st.just(UTC))
SECONDS = st.integers(0, 10**15).map(lambda nanos: nanos / 1e9)
for kind, strategy in ((str, TEXT), (int, INT64), (float, FLOAT), (datetime, MOMENT)):
    st.register_type_strategy(kind, strategy)

SAMPLING = st.builds(Sampling, top_k=st.none() | INT32, max_output_tokens=st.none() | INT32)
OUTCOME = st.builds(Outcome, check_exit_code=st.none() | INT32)
TIMINGS = st.builds(
    Timings, queue=SECONDS, first_token=st.none() | SECONDS, decode=st.none() | SECONDS, total=SECONDS
)
REUSE = st.builds(Reuse, break_message=st.none() | INT32, volatile_blocks=st.none() | INT32)
STEP = st.builds(
    Step,
    reuse=st.none() | REUSE,
    timings=st.none() | TIMINGS,
    attempt_count=st.integers(0, 2**31 - 1),
    malformed_tool_calls=st.integers(0, 2**31 - 1),
)
FINISHED = st.builds(events.Finished, reuse=REUSE, timings=TIMINGS, malformed_tool_calls=st.integers(0, 2**31 - 1))


def over_the_wire(message: ProtoMessage) -> Any:
    """Return the message as a receiver parses it."""
    return type(message).FromString(message.SerializeToString())


def given_value(message: ProtoMessage, field: str) -> Any:
    """Return an optional field; None where it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def read_usage(proto: usage_pb2.Usage) -> Usage:
    return Usage(
        given_value(proto, "uncached_prompt_token_count"),
        given_value(proto, "cached_prompt_token_count"),
        given_value(proto, "cache_write_token_count"),
        given_value(proto, "output_token_count"),
        given_value(proto, "reasoning_token_count"),
        usage.USAGE_SOURCES.to_domain(proto.prompt_source, "") if proto.prompt_source else None,
        usage.USAGE_SOURCES.to_domain(proto.output_source, "") if proto.output_source else None,
    )


def read_speculation(proto: usage_pb2.Speculation) -> Speculation:
    return Speculation(
        proto.profile,
        given_value(proto, "drafted_token_count"),
        given_value(proto, "accepted_draft_token_count"),
        given_value(proto, "mean_acceptance_length"),
        given_value(proto, "draft_step_count"),
    )


def read_reuse(proto: usage_pb2.Reuse) -> Reuse:
    return Reuse(
        proto.prompt_token_count,
        proto.carried_token_count,
        proto.rendered_token_count,
        usage.REUSE_BREAKS.to_domain(proto.break_reason, "") if proto.break_reason else None,
        given_value(proto, "break_message_index"),
        given_value(proto, "dropped_token_count"),
        given_value(proto, "kept_reasoning_token_count"),
        given_value(proto, "volatile_block_count"),
    )


def read_timings(proto: usage_pb2.Timings) -> Timings:
    def span(field: str) -> Any:
        value = given_value(proto, field)
        return None if value is None else values.seconds(value)

    return Timings(span("queue"), span("first_token"), span("decode"), span("total"))


def read_cost(proto: usage_pb2.Cost) -> Cost:
    return Cost(
        given_value(proto, "list_cost_usd_nanos"),
        given_value(proto, "infrastructure_cost_usd_nanos"),
        proto.price_name,
        proto.example_price,
    )


def read_outcome(proto: workflow_pb2.Outcome) -> Outcome:
    set_at = values.moment(proto.set_time, "") if proto.HasField("set_time") else None
    return replace(workflows.outcome_from_proto(proto, ""), set_at=set_at)


@given(st.from_type(Message))
def test_messages(message: Message) -> None:
    assert messages.message_from_proto(over_the_wire(messages.message_to_proto(message)), "") == message


@given(st.lists(st.from_type(Tool), max_size=3).map(tuple))
def test_tools(tools: tuple[Tool, ...]) -> None:
    wire = [over_the_wire(tool) for tool in messages.tools_to_proto(tools)]
    assert messages.tools_from_proto(wire) == tools


@given(SAMPLING)
def test_sampling(sampling: Sampling) -> None:
    assert messages.sampling_from_proto(over_the_wire(messages.sampling_to_proto(sampling))) == sampling


@given(st.from_type(Budget))
def test_budgets(budget: Budget) -> None:
    assert workflows.budget_from_proto(over_the_wire(workflows.budget_to_proto(budget))) == budget


@given(OUTCOME)
def test_outcomes(outcome: Outcome) -> None:
    assert read_outcome(over_the_wire(workflows.outcome_to_proto(outcome))) == outcome


@given(
    st.builds(
        Workflow,
        sampling=SAMPLING,
        outcome=st.none() | OUTCOME,
        store=st.sampled_from(StorePolicy),
        retention_seconds=st.none() | st.integers(60, 36_500 * 86_400),
        content_deleted_at=st.none() | MOMENT,
    )
)
def test_workflows(workflow: Workflow) -> None:
    proto: workflow_pb2.Workflow = over_the_wire(workflows.workflow_to_proto(workflow))
    read = Workflow(
        workflow_id=proto.workflow_id,
        tenant=workflow.tenant,
        model=proto.model,
        system=proto.system,
        tools=messages.tools_from_proto(proto.tools),
        sampling=messages.sampling_from_proto(proto.sampling),
        labels=dict(proto.labels),
        budget=workflows.budget_from_proto(proto.budget),
        transcript_policy=workflows.POLICIES.to_domain(proto.transcript_policy, ""),
        store=workflows.STORES.to_domain(proto.store, ""),
        retention_seconds=values.whole_seconds(proto.retention, "") if proto.HasField("retention") else None,
        content_deleted_at=(
            values.moment(proto.content_delete_time, "") if proto.HasField("content_delete_time") else None
        ),
        parent_workflow_id=proto.parent_workflow_id or None,
        forked_step_id=proto.forked_step_id or None,
        head_step_id=proto.head_step_id or None,
        replica=workflow.replica,
        outcome=read_outcome(proto.outcome) if proto.HasField("outcome") else None,
        created_at=values.moment(proto.create_time, "") if proto.HasField("create_time") else None,
        updated_at=values.moment(proto.update_time, "") if proto.HasField("update_time") else None,
    )
    assert read == replace(
        workflow,
        parent_workflow_id=workflow.parent_workflow_id or None,
        forked_step_id=workflow.forked_step_id or None,
        head_step_id=workflow.head_step_id or None,
    )


@given(STEP)
def test_steps(step: Step) -> None:
    proto: step_pb2.Step = over_the_wire(steps.step_to_proto(step))
    read = replace(
        step,
        step_id=proto.step_id,
        workflow_id=proto.workflow_id,
        request_id=proto.request_id,
        state=steps.STEP_STATES.to_domain(proto.state, ""),
        input=messages.messages_from_proto(proto.input, ""),
        parent_step_id=proto.parent_step_id or step.parent_step_id,
        output=messages.message_from_proto(proto.output, "") if proto.HasField("output") else None,
        malformed_tool_calls=proto.malformed_tool_call_count,
        finish_reason=steps.FINISH_REASONS.to_domain(proto.finish_reason, "") if proto.finish_reason else None,
        usage=read_usage(proto.usage),
        reuse=read_reuse(proto.reuse) if proto.HasField("reuse") else None,
        speculation=read_speculation(proto.speculation),
        timings=read_timings(proto.timings) if proto.HasField("timings") else None,
        cost=read_cost(proto.cost),
        attempt_count=proto.attempt_count,
        error_reason=proto.error_reason,
        error_message=proto.error_message,
        replica=proto.replica,
        created_at=values.moment(proto.create_time, "") if proto.HasField("create_time") else None,
        ended_at=values.moment(proto.end_time, "") if proto.HasField("end_time") else None,
    )
    assert read == step
    assert proto.step_class == (step.step_class or "")


@given(FINISHED)
def test_finished(event: events.Finished) -> None:
    proto: step_service_pb2.StepFinished = over_the_wire(steps.event_to_proto(event)).finished
    assert event == events.Finished(
        message=messages.message_from_proto(proto.message, ""),
        finish_reason=steps.FINISH_REASONS.to_domain(proto.finish_reason, ""),
        usage=read_usage(proto.usage),
        reuse=read_reuse(proto.reuse),
        speculation=read_speculation(proto.speculation),
        timings=read_timings(proto.timings),
        cost=read_cost(proto.cost),
        malformed_tool_calls=proto.malformed_tool_call_count,
        replica=proto.replica,
    )


@given(st.from_type(CostSummary))
def test_cost_summaries(summary: CostSummary) -> None:
    proto: cost_service_pb2.CostSummary = over_the_wire(costs.summary_to_proto(summary))
    assert summary == CostSummary(
        group=tuple(proto.group),
        workflows=given_value(proto, "workflow_count"),
        succeeded_workflows=given_value(proto, "succeeded_workflow_count"),
        known_outcome_workflows=given_value(proto, "known_outcome_workflow_count"),
        steps=proto.step_count,
        attempts=proto.attempt_count,
        uncached_prompt=proto.uncached_prompt_token_count,
        cached_prompt=proto.cached_prompt_token_count,
        output=proto.output_token_count,
        drafted=proto.drafted_token_count,
        accepted=proto.accepted_draft_token_count,
        draft_reports=proto.draft_report_count,
        draft_steps=proto.draft_step_count,
        mean_acceptance_length=given_value(proto, "mean_acceptance_length"),
        acceptance_rate=given_value(proto, "acceptance_rate"),
        output_per_decode_second=given_value(proto, "output_tokens_per_decode_second"),
        unreported_attempts=proto.unreported_attempt_count,
        unpriced_attempts=proto.unpriced_attempt_count,
        list_nanos=proto.list_cost_usd_nanos,
        retry_nanos=proto.retry_cost_usd_nanos,
        infrastructure_nanos=(
            proto.infrastructure_cost_usd_nanos if proto.HasField("infrastructure_cost_usd_nanos") else None
        ),
        cost_per_success_nanos=given_value(proto, "cost_per_success_usd_nanos"),
        example_price=proto.example_price,
    )


@given(st.binary(max_size=200))
def test_any_request_is_converted_or_refused_by_name(data: bytes) -> None:
    request = step_service_pb2.RunStepRequest()
    with suppress(DecodeError):  # bytes that are no message never reach a servicer; what was read before does here
        request.ParseFromString(data)
    refused: InvalidArgument | None = None
    try:
        command = steps.run_from_proto("t", "", request)
    except InvalidArgument as error:
        refused = error
    assert refused.field if refused else command.workflow_id == request.workflow_id


@pytest.mark.parametrize("role", [0, 99, -1])
def test_an_unknown_role_is_refused_by_its_place(role: Any) -> None:
    bad = message_pb2.Message(role=role)
    with pytest.raises(InvalidMessage) as caught:
        messages.messages_from_proto([message_pb2.Message(role=message_pb2.ROLE_USER), bad], "append.messages")
    assert caught.value.field == "append.messages[1].role"


def test_each_enum_has_as_many_values_as_the_proto() -> None:
    for table, proto in (
        (usage.USAGE_SOURCES, usage_pb2.UsageSource),
        (usage.REUSE_BREAKS, usage_pb2.ReuseBreak),
        (steps.STEP_STATES, step_pb2.StepState),
        (steps.FINISH_REASONS, step_pb2.FinishReason),
        (steps.PHASES, step_service_pb2.StepPhase),
        (steps.ON_BUSY, step_service_pb2.OnBusy),
        (messages.ROLES, message_pb2.Role),
        (workflows.OUTCOME_KINDS, workflow_pb2.OutcomeKind),
        (workflows.OUTCOME_SOURCES, workflow_pb2.OutcomeSource),
    ):
        members = {table.to_domain(value, "") for value in proto.values() if value}
        assert len(members) == len(proto.values()) - 1


def test_what_is_not_reported_is_not_zero() -> None:
    proto = usage.usage_to_proto(Usage(cached_prompt=0, prompt_source=UsageSource.ENGINE))
    assert proto.HasField("cached_prompt_token_count")
    assert not proto.HasField("output_token_count")
    assert usage.reuse_to_proto(Reuse(1, 0, 1, ReuseBreak.MOVED)).break_reason == usage_pb2.REUSE_BREAK_MOVED
