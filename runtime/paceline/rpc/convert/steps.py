"""Conversion of steps, their requests and their events."""

from __future__ import annotations

from typing import assert_never

from paceline.errors import InvalidArgument
from paceline.routing.pools import PoolChoice, PoolReason
from paceline.rpc.convert import messages, usage
from paceline.rpc.convert.values import EnumTable, duration, seconds, timestamp
from paceline.v1 import step_pb2 as pb
from paceline.v1 import step_service_pb2 as service_pb
from paceline.workflow import events
from paceline.workflow.commands import (
    Append,
    Conversation,
    OnBusy,
    ResponseFormat,
    RunStep,
    ToolChoice,
    ToolChoiceMode,
)
from paceline.workflow.model import FinishReason, OutputFlag, Step, StepState, WorkflowMatch

STEP_STATES = EnumTable(StepState, pb.StepState, "STEP_STATE")
FINISH_REASONS = EnumTable(FinishReason, pb.FinishReason, "FINISH_REASON")
POOL_REASONS = EnumTable(PoolReason, pb.PoolReason, "POOL_REASON")
PHASES = EnumTable(events.Phase, service_pb.StepPhase, "STEP_PHASE")
TOOL_CHOICES = EnumTable(ToolChoiceMode, service_pb.ToolChoiceMode, "TOOL_CHOICE_MODE")
MATCHES = EnumTable(WorkflowMatch, pb.WorkflowMatch, "WORKFLOW_MATCH")
OUTPUT_FLAGS = EnumTable(OutputFlag, pb.OutputFlag, "OUTPUT_FLAG")
ON_BUSY = EnumTable(OnBusy, service_pb.OnBusy, "ON_BUSY")


def run_from_proto(tenant: str, caller: str, request: service_pb.RunStepRequest) -> RunStep:
    """Convert a request to run a step; `caller` as in `RunStep`. Raises `InvalidArgument` and `InvalidMessage`."""
    return RunStep(
        tenant=tenant,
        workflow_id=request.workflow_id,
        request_id=request.request_id,
        input=_input_from_proto(request),
        parent_step_id=request.parent_step_id,
        on_busy=ON_BUSY.to_domain(request.on_busy or service_pb.ON_BUSY_WAIT, "on_busy"),
        sampling=messages.sampling_from_proto(request.sampling),
        tools=messages.tools_from_proto(request.tools.tools) if request.HasField("tools") else None,
        detach_grace=seconds(request.detach_grace),
        caller=caller,
        model=request.model,
        labels=dict(request.labels),
        tool_choice=_tool_choice_from_proto(request.tool_choice),
        response_format=_format_from_proto(request.response_format)
        if request.HasField("response_format")
        else None,
    )


def _tool_choice_from_proto(choice: service_pb.ToolChoice) -> ToolChoice:
    mode = TOOL_CHOICES.to_domain(choice.mode or service_pb.TOOL_CHOICE_MODE_AUTO, "tool_choice.mode")
    return ToolChoice(mode, choice.tool_name)


def _format_from_proto(given: service_pb.ResponseFormat) -> ResponseFormat:
    field = "response_format"
    match given.WhichOneof("format"):
        case "json_schema" if given.json_schema:
            return ResponseFormat(given.json_schema)
        case "json_object" if given.json_object:
            return ResponseFormat()
        case _:
            raise InvalidArgument(f"{field}: give json_schema, or set json_object to true", field=field)


def _input_from_proto(request: service_pb.RunStepRequest) -> Append | Conversation:
    match request.WhichOneof("input"):
        case "append":
            return Append(messages.messages_from_proto(request.append.messages, "append.messages"))
        case "conversation":
            return Conversation(
                messages.messages_from_proto(request.conversation.messages, "conversation.messages")
            )
        case None:
            raise InvalidArgument("input: give append or conversation", field="input")


def event_to_proto(event: events.Event) -> service_pb.RunStepResponse:
    """Convert one event."""
    match event:
        case events.Started():
            return service_pb.RunStepResponse(
                started=service_pb.StepStarted(
                    step_id=event.step_id,
                    workflow_id=event.workflow_id,
                    request_id=event.request_id,
                    replayed=event.replayed,
                    attached=event.attached,
                    match=MATCHES.to_proto(event.match),
                )
            )
        case events.Progress():
            return service_pb.RunStepResponse(
                progress=service_pb.StepProgress(
                    phase=PHASES.to_proto(event.phase),
                    queue_position=event.queue_position,
                    waited=duration(event.waited),
                )
            )
        case events.ReasoningDelta():
            return service_pb.RunStepResponse(reasoning_delta=service_pb.TextDelta(text=event.text))
        case events.TextDelta():
            return service_pb.RunStepResponse(text_delta=service_pb.TextDelta(text=event.text))
        case events.ToolCallEvent():
            return service_pb.RunStepResponse(tool_call=messages.tool_call_to_proto(event.tool_call))
        case events.Finished():
            return service_pb.RunStepResponse(finished=_finished_to_proto(event))
        case _:
            assert_never(event)


def _finished_to_proto(event: events.Finished) -> service_pb.StepFinished:
    return service_pb.StepFinished(
        message=messages.message_to_proto(event.message),
        finish_reason=FINISH_REASONS.to_proto(event.finish_reason),
        usage=usage.usage_to_proto(event.usage),
        reuse=usage.reuse_to_proto(event.reuse),
        speculation=usage.speculation_to_proto(event.speculation),
        timings=usage.timings_to_proto(event.timings),
        cost=usage.cost_to_proto(event.cost),
        malformed_tool_call_count=event.malformed_tool_calls,
        replica=event.replica,
        output_flags=[OUTPUT_FLAGS.to_proto(flag) for flag in event.output_flags],
    )


def failure_to_proto(failure: events.StepFailureInfo) -> service_pb.StepFailure:
    """Convert what a failed step had used."""
    return service_pb.StepFailure(
        step_id=failure.step_id,
        usage=usage.usage_to_proto(failure.usage),
        cost=usage.cost_to_proto(failure.cost),
    )


def _pool_to_proto(choice: PoolChoice) -> pb.PoolChoice:
    return pb.PoolChoice(
        reason=POOL_REASONS.to_proto(choice.reason),
        decode_saving=duration(choice.saving_seconds),
        prefill=duration(choice.prefill_seconds),
    )


def step_to_proto(step: Step) -> pb.Step:
    """Convert a step."""
    return pb.Step(
        step_id=step.step_id,
        workflow_id=step.workflow_id,
        parent_step_id=step.parent_step_id or "",
        request_id=step.request_id,
        state=STEP_STATES.to_proto(step.state),
        input=[messages.message_to_proto(message) for message in step.input],
        output=messages.message_to_proto(step.output) if step.output else None,
        finish_reason=FINISH_REASONS.to_proto(step.finish_reason),
        usage=usage.usage_to_proto(step.usage),
        reuse=usage.reuse_to_proto(step.reuse) if step.reuse else None,
        speculation=usage.speculation_to_proto(step.speculation),
        timings=usage.timings_to_proto(step.timings) if step.timings else None,
        cost=usage.cost_to_proto(step.cost),
        attempt_count=step.attempt_count,
        error_reason=step.error_reason,
        error_message=step.error_message,
        malformed_tool_call_count=step.malformed_tool_calls,
        step_class=step.step_class or "",
        replica=step.replica,
        pool_choice=_pool_to_proto(step.pool) if step.pool else None,
        match=MATCHES.to_proto(step.match),
        output_flags=[OUTPUT_FLAGS.to_proto(flag) for flag in step.output_flags],
        create_time=timestamp(step.created_at),
        end_time=timestamp(step.ended_at),
    )
