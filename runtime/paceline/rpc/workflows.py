"""The servicer of `WorkflowService`."""
# ruff: noqa: N802 - the methods have the proto's names

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

from paceline.rpc.convert import workflows as convert
from paceline.rpc.interceptor import current_tenant
from paceline.v1 import workflow_service_pb2 as pb
from paceline.v1 import workflow_service_pb2_grpc as pb_grpc
from paceline.workflow.api import WorkflowUseCase

_Context = ServicerContext[Any, Any]


class WorkflowServicer(pb_grpc.WorkflowServiceServicer):
    """Converts and calls the use case."""

    def __init__(self, workflows: WorkflowUseCase) -> None:
        self._workflows = workflows

    async def CreateWorkflow(
        self, request: pb.CreateWorkflowRequest, context: _Context
    ) -> pb.CreateWorkflowResponse:
        """Create a workflow."""
        workflow = await self._workflows.create(convert.create_from_proto(current_tenant(), request))
        return pb.CreateWorkflowResponse(workflow=convert.workflow_to_proto(workflow))

    async def GetWorkflow(self, request: pb.GetWorkflowRequest, context: _Context) -> pb.GetWorkflowResponse:
        """Return a workflow."""
        workflow = await self._workflows.get(current_tenant(), request.workflow_id)
        return pb.GetWorkflowResponse(workflow=convert.workflow_to_proto(workflow))

    async def ListWorkflows(self, request: pb.ListWorkflowsRequest, context: _Context) -> pb.ListWorkflowsResponse:
        """Return workflows."""
        page = await self._workflows.list(
            current_tenant(), convert.filter_from_proto(request), request.page_size, request.page_token
        )
        return pb.ListWorkflowsResponse(
            workflows=[convert.workflow_to_proto(workflow) for workflow in page.items],
            next_page_token=page.next_token,
        )

    async def FinishWorkflow(
        self, request: pb.FinishWorkflowRequest, context: _Context
    ) -> pb.FinishWorkflowResponse:
        """Set the outcome of a workflow."""
        outcome = convert.outcome_from_proto(request.outcome, "outcome")
        workflow = await self._workflows.finish(current_tenant(), request.workflow_id, outcome)
        return pb.FinishWorkflowResponse(workflow=convert.workflow_to_proto(workflow))

    async def ForkWorkflow(self, request: pb.ForkWorkflowRequest, context: _Context) -> pb.ForkWorkflowResponse:
        """Fork a workflow."""
        workflow = await self._workflows.fork(convert.fork_from_proto(current_tenant(), request))
        return pb.ForkWorkflowResponse(workflow=convert.workflow_to_proto(workflow))

    async def DeleteWorkflowContent(
        self, request: pb.DeleteWorkflowContentRequest, context: _Context
    ) -> pb.DeleteWorkflowContentResponse:
        """Delete the texts and token ids of a workflow."""
        workflow = await self._workflows.delete_content(current_tenant(), request.workflow_id)
        return pb.DeleteWorkflowContentResponse(workflow=convert.workflow_to_proto(workflow))
