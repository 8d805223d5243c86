"""The requests of `paceline.v1`, made from what the callers of the clients give."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Unpack

from paceline.v1 import message_pb2, step_service_pb2, workflow_pb2
from paceline.v1 import workflow_service_pb2 as workflow_service
from paceline_agents import types as t
from paceline_agents.options import ConversationOptions, RunOptions, StepOptions, WorkflowOptions

_ROLES = {
    t.Role.SYSTEM: message_pb2.ROLE_SYSTEM,
    t.Role.USER: message_pb2.ROLE_USER,
    t.Role.ASSISTANT: message_pb2.ROLE_ASSISTANT,
    t.Role.TOOL: message_pb2.ROLE_TOOL,
}
_ON_BUSY = {
    t.OnBusy.WAIT: step_service_pb2.ON_BUSY_WAIT,
    t.OnBusy.FAIL: step_service_pb2.ON_BUSY_FAIL,
    t.OnBusy.FORK: step_service_pb2.ON_BUSY_FORK,
}
_TOOL_CHOICES = {
    t.ToolChoice.AUTO: step_service_pb2.TOOL_CHOICE_MODE_AUTO,
    t.ToolChoice.NONE: step_service_pb2.TOOL_CHOICE_MODE_NONE,
    t.ToolChoice.REQUIRED: step_service_pb2.TOOL_CHOICE_MODE_REQUIRED,
}
_OUTCOMES = {
    t.OutcomeKind.SUCCEEDED: workflow_pb2.OUTCOME_KIND_SUCCEEDED,
    t.OutcomeKind.FAILED: workflow_pb2.OUTCOME_KIND_FAILED,
    t.OutcomeKind.ABANDONED: workflow_pb2.OUTCOME_KIND_ABANDONED,
    t.OutcomeKind.UNKNOWN: workflow_pb2.OUTCOME_KIND_UNKNOWN,
}
_SOURCES = {
    t.OutcomeSource.CLIENT: workflow_pb2.OUTCOME_SOURCE_CLIENT,
    t.OutcomeSource.CHECK_COMMAND: workflow_pb2.OUTCOME_SOURCE_CHECK_COMMAND,
    t.OutcomeSource.CI: workflow_pb2.OUTCOME_SOURCE_CI,
    t.OutcomeSource.PERSON: workflow_pb2.OUTCOME_SOURCE_PERSON,
    t.OutcomeSource.RUNTIME: workflow_pb2.OUTCOME_SOURCE_RUNTIME,
}
_POLICIES = {
    t.TranscriptPolicy.APPEND_ONLY: workflow_pb2.TRANSCRIPT_POLICY_APPEND_ONLY,
    t.TranscriptPolicy.TEMPLATE_FAITHFUL: workflow_pb2.TRANSCRIPT_POLICY_TEMPLATE_FAITHFUL,
}
_STORES = {
    t.StorePolicy.FULL: workflow_pb2.STORE_POLICY_FULL,
    t.StorePolicy.NONE: workflow_pb2.STORE_POLICY_NONE,
}

Input = str | t.Message | Iterable[t.Message]


def new_id() -> str:
    """A random id that the server accepts."""
    return uuid.uuid4().hex


def create_request(**options: Unpack[WorkflowOptions]) -> workflow_service.CreateWorkflowRequest:
    """The request of CreateWorkflow. It always has an id, so that it can be sent again."""
    request = workflow_service.CreateWorkflowRequest(
        workflow_id=options.get("workflow_id") or new_id(),
        model=options.get("model", ""),
        system=options.get("system", ""),
        tools=[_tool(tool) for tool in options.get("tools", ())],
        sampling=_sampling(options),
        labels=options.get("labels", {}),
        budget=workflow_pb2.Budget(
            list_cost_usd_nanos=options.get("budget_list_nanos"),
            token_count=options.get("budget_tokens"),
            step_count=options.get("budget_steps"),
        ),
        parent_workflow_id=options.get("parent_workflow_id", ""),
        transcript_policy=_POLICIES[options.get("transcript_policy", t.TranscriptPolicy.APPEND_ONLY)],
        store=_STORES[options.get("store", t.StorePolicy.FULL)],
    )
    if (retention := options.get("retention")) is not None:
        request.retention.FromTimedelta(retention)
    return request


def run_request(
    workflow_id: str, content: Input, **options: Unpack[StepOptions]
) -> step_service_pb2.RunStepRequest:
    """The request of RunStep. It always has a request id, so that it can be sent again."""
    messages = [_message(message) for message in _messages(content)]
    request = _run_request(options)
    request.workflow_id = workflow_id
    request.parent_step_id = options.get("parent_step_id", "")
    request.on_busy = _ON_BUSY[options.get("on_busy", t.OnBusy.WAIT)]
    if options.get("whole_conversation"):
        request.conversation.messages.extend(messages)
    else:
        request.append.messages.extend(messages)
    return request


def conversation_request(
    messages: Iterable[t.Message], **options: Unpack[ConversationOptions]
) -> step_service_pb2.RunStepRequest:
    """The request of RunStep that names no workflow. It always has a request id, so that it can be sent again."""
    request = _run_request(options)
    request.model = options.get("model", "")
    request.labels.update(options.get("labels", {}))
    request.conversation.messages.extend(map(_message, messages))
    return request


def _run_request(options: RunOptions) -> step_service_pb2.RunStepRequest:
    """What every request of RunStep has."""
    request = step_service_pb2.RunStepRequest(
        request_id=options.get("request_id") or new_id(), sampling=_sampling(options)
    )
    tools, grace = options.get("tools"), options.get("detach_grace")
    if tools is not None:
        request.tools.CopyFrom(step_service_pb2.ToolSet(tools=[_tool(tool) for tool in tools]))
    if grace is not None:
        request.detach_grace.FromTimedelta(timedelta(seconds=grace))
    _choose_form(request, options)
    return request


def _choose_form(request: step_service_pb2.RunStepRequest, options: RunOptions) -> None:
    """What the client wants of the answer."""
    choice, wanted = options.get("tool_choice"), options.get("response_format")
    if isinstance(choice, t.ToolChoice):
        request.tool_choice.mode = _TOOL_CHOICES[choice]
    elif choice is not None:
        request.tool_choice.mode = step_service_pb2.TOOL_CHOICE_MODE_NAMED
        request.tool_choice.tool_name = choice
    if wanted:
        request.response_format.json_schema = wanted
    elif wanted is not None:
        request.response_format.json_object = True


def finish_request(
    workflow_id: str,
    outcome: t.OutcomeKind,
    source: t.OutcomeSource,
    note: str,
    check_exit_code: int | None,
) -> workflow_service.FinishWorkflowRequest:
    """The request of FinishWorkflow."""
    return workflow_service.FinishWorkflowRequest(
        workflow_id=workflow_id,
        outcome=workflow_pb2.Outcome(
            kind=_OUTCOMES[outcome], source=_SOURCES[source], note=note, check_exit_code=check_exit_code
        ),
    )


def fork_request(
    workflow_id: str, step_id: str, new_workflow_id: str, labels: dict[str, str] | None
) -> workflow_service.ForkWorkflowRequest:
    """The request of ForkWorkflow. It always has an id, so that it can be sent again."""
    return workflow_service.ForkWorkflowRequest(
        workflow_id=workflow_id, step_id=step_id, new_workflow_id=new_workflow_id or new_id(), labels=labels or {}
    )


def _messages(content: Input) -> Iterable[t.Message]:
    if isinstance(content, str):
        return [t.Message(t.Role.USER, content)]
    return [content] if isinstance(content, t.Message) else content


def _message(message: t.Message) -> message_pb2.Message:
    return message_pb2.Message(
        role=_ROLES[message.role],
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=[
            message_pb2.ToolCall(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                arguments_json=call.arguments_json,
                defect=call.defect,
            )
            for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
        tool_name=message.tool_name,
    )


def _tool(tool: t.Tool) -> message_pb2.Tool:
    return message_pb2.Tool(
        tool_name=tool.tool_name, description=tool.description, parameters_json=tool.parameters_json
    )


def _sampling(options: t.SamplingOptions) -> message_pb2.Sampling:
    return message_pb2.Sampling(
        temperature=options.get("temperature"),
        top_p=options.get("top_p"),
        top_k=options.get("top_k"),
        seed=options.get("seed"),
        max_output_token_count=options.get("max_output_tokens"),
        stop=options.get("stop", ()),
    )
