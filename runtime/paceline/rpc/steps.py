"""The servicer of `StepService`."""
# ruff: noqa: N802 - the methods have the proto's names

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from grpc.aio import ServicerContext

from paceline.rpc.convert import steps as convert
from paceline.rpc.interceptor import current_caller, current_tenant
from paceline.v1 import step_service_pb2 as pb
from paceline.v1 import step_service_pb2_grpc as pb_grpc
from paceline.workflow.api import StepUseCase

_Context = ServicerContext[Any, Any]


class StepServicer(pb_grpc.StepServiceServicer):
    """Converts and calls the use case."""

    def __init__(self, steps: StepUseCase) -> None:
        self._steps = steps

    async def RunStep(
        self, request: pb.RunStepRequest, context: _Context
    ) -> AsyncGenerator[pb.RunStepResponse, None]:
        """Stream the events of one step."""
        command = convert.run_from_proto(current_tenant(), current_caller(), request)
        async with aclosing(self._steps.run(command)) as events:
            async for event in events:
                yield convert.event_to_proto(event)

    async def CancelStep(self, request: pb.CancelStepRequest, context: _Context) -> pb.CancelStepResponse:
        """Abort a step."""
        step = await self._steps.cancel(current_tenant(), step_id=request.step_id, request_id=request.request_id)
        return pb.CancelStepResponse(step=convert.step_to_proto(step))

    async def GetStep(self, request: pb.GetStepRequest, context: _Context) -> pb.GetStepResponse:
        """Return a step."""
        step = await self._steps.get(current_tenant(), step_id=request.step_id, request_id=request.request_id)
        return pb.GetStepResponse(step=convert.step_to_proto(step))

    async def ListSteps(self, request: pb.ListStepsRequest, context: _Context) -> pb.ListStepsResponse:
        """Return steps of a workflow."""
        page = await self._steps.list(current_tenant(), request.workflow_id, request.page_size, request.page_token)
        return pb.ListStepsResponse(
            steps=[convert.step_to_proto(step) for step in page.items], next_page_token=page.next_token
        )
