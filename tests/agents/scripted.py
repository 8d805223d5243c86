"""A real gRPC server that plays scripts: what each call of RunStep says, and how it ends."""

# ruff: noqa: N802 - methods have the names of the RPCs

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from paceline.v1 import (
    cost_service_pb2,
    cost_service_pb2_grpc,
    message_pb2,
    step_pb2,
    step_service_pb2,
    step_service_pb2_grpc,
    usage_pb2,
    workflow_pb2,
    workflow_service_pb2,
    workflow_service_pb2_grpc,
)

Response = step_service_pb2.RunStepResponse


@dataclass
class Failure:
    """The end of a call by an error."""

    code: grpc.StatusCode
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    step: step_service_pb2.StepFailure | None = None

    async def abort(self, context: Any) -> None:
        if not self.reason:
            await context.abort(self.code, "out of order")
        details = [error_details_pb2.ErrorInfo(reason=self.reason, domain="paceline", metadata=self.metadata)]
        status = status_pb2.Status(code=self.code.value[0], message=f"it failed: {self.reason}")
        for detail in [*details, *([self.step] if self.step else [])]:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        await context.abort_with_status(rpc_status.to_status(status))


Script = list[Response | Failure | Callable[[], Any]]


class Scripted(
    step_service_pb2_grpc.StepServiceServicer,
    workflow_service_pb2_grpc.WorkflowServiceServicer,
    cost_service_pb2_grpc.CostServiceServicer,
):
    """Keeps every request and plays `runs` and `failures` in order."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.runs: list[Script] = []
        self.failures: list[Failure] = []
        self.cancelled = 0

    async def RunStep(self, request: Any, context: Any) -> AsyncIterator[Response]:
        await self._note(request, context)
        try:
            for act in self.runs.pop(0):
                if isinstance(act, Failure):
                    await act.abort(context)
                elif isinstance(act, Response):
                    yield act
                else:
                    await act()
        except BaseException:
            self.cancelled += 1
            raise

    async def CancelStep(self, request: Any, context: Any) -> step_service_pb2.CancelStepResponse:
        await self._note(request, context)
        step = step_pb2.Step(
            step_id="step-0001", state=step_pb2.STEP_STATE_CANCELLED, error_reason="STEP_CANCELLED"
        )
        return step_service_pb2.CancelStepResponse(step=step)

    async def GetStep(self, request: Any, context: Any) -> step_service_pb2.GetStepResponse:
        await self._note(request, context)
        step = step_pb2.Step(
            step_id="step-0001",
            state=step_pb2.STEP_STATE_FINISHED,
            output=message_pb2.Message(content="stored"),
            finish_reason=step_pb2.FINISH_REASON_LENGTH,
        )
        return step_service_pb2.GetStepResponse(step=step)

    async def ListSteps(self, request: Any, context: Any) -> step_service_pb2.ListStepsResponse:
        raise NotImplementedError

    async def CreateWorkflow(self, request: Any, context: Any) -> workflow_service_pb2.CreateWorkflowResponse:
        await self._note(request, context)
        return workflow_service_pb2.CreateWorkflowResponse(workflow=_workflow(request.workflow_id, request.labels))

    async def GetWorkflow(self, request: Any, context: Any) -> workflow_service_pb2.GetWorkflowResponse:
        await self._note(request, context)
        workflow = _workflow(request.workflow_id, {})
        workflow.create_time.FromSeconds(1_700_000_000)
        return workflow_service_pb2.GetWorkflowResponse(workflow=workflow)

    async def ListWorkflows(self, request: Any, context: Any) -> workflow_service_pb2.ListWorkflowsResponse:
        raise NotImplementedError

    async def FinishWorkflow(self, request: Any, context: Any) -> workflow_service_pb2.FinishWorkflowResponse:
        await self._note(request, context)
        workflow = _workflow(request.workflow_id, {})
        workflow.outcome.CopyFrom(request.outcome)
        return workflow_service_pb2.FinishWorkflowResponse(workflow=workflow)

    async def ForkWorkflow(self, request: Any, context: Any) -> workflow_service_pb2.ForkWorkflowResponse:
        await self._note(request, context)
        workflow = _workflow(request.new_workflow_id, request.labels)
        workflow.parent_workflow_id = request.workflow_id
        workflow.forked_step_id = request.step_id
        return workflow_service_pb2.ForkWorkflowResponse(workflow=workflow)

    async def DeleteWorkflowContent(
        self, request: Any, context: Any
    ) -> workflow_service_pb2.DeleteWorkflowContentResponse:
        await self._note(request, context)
        workflow = _workflow(request.workflow_id, {})
        workflow.content_delete_time.FromSeconds(1_700_000_001)
        return workflow_service_pb2.DeleteWorkflowContentResponse(workflow=workflow)

    async def GetWorkflowCost(self, request: Any, context: Any) -> cost_service_pb2.GetWorkflowCostResponse:
        await self._note(request, context)
        summary = cost_service_pb2.CostSummary(step_count=3, list_cost_usd_nanos=42, example_price=True)
        return cost_service_pb2.GetWorkflowCostResponse(summary=summary)

    async def QueryCosts(self, request: Any, context: Any) -> cost_service_pb2.QueryCostsResponse:
        raise NotImplementedError

    async def _note(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.failures:
            await self.failures.pop(0).abort(context)


def _workflow(workflow_id: str, labels: Any) -> workflow_pb2.Workflow:
    return workflow_pb2.Workflow(workflow_id=workflow_id, model="m", labels=labels)


def started(*, replayed: bool = False) -> Response:
    event = step_service_pb2.StepStarted(step_id="step-0001", workflow_id="workflow-1", replayed=replayed)
    return Response(started=event)


def text(piece: str) -> Response:
    return Response(text_delta=step_service_pb2.TextDelta(text=piece))


def tool_call(name: str, call_id: str) -> Response:
    return Response(tool_call=message_pb2.ToolCall(tool_call_id=call_id, tool_name=name, arguments_json="{}"))


def finished(content: str) -> Response:
    end = step_service_pb2.StepFinished(
        message=message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=content),
        finish_reason=step_pb2.FINISH_REASON_STOP,
        usage=usage_pb2.Usage(
            uncached_prompt_token_count=3, output_token_count=0, output_source=usage_pb2.USAGE_SOURCE_ENGINE
        ),
        cost=usage_pb2.Cost(list_cost_usd_nanos=7, price_name="EXAMPLE"),
    )
    end.timings.decode.FromMilliseconds(1500)
    return Response(finished=end)


@dataclass
class Served:
    """A running scripted server."""

    target: str
    script: Scripted


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    """A scripted server on loopback."""
    script, server = Scripted(), grpc.aio.server()
    step_service_pb2_grpc.add_StepServiceServicer_to_server(script, server)
    workflow_service_pb2_grpc.add_WorkflowServiceServicer_to_server(script, server)
    cost_service_pb2_grpc.add_CostServiceServicer_to_server(script, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Served(f"127.0.0.1:{port}", script)
    finally:
        await server.stop(None)
