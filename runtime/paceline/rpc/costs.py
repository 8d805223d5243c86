"""The servicer of `CostService`."""
# ruff: noqa: N802 - the methods have the proto's names

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

from paceline.rpc.convert import costs as convert
from paceline.rpc.interceptor import current_tenant
from paceline.v1 import cost_service_pb2 as pb
from paceline.v1 import cost_service_pb2_grpc as pb_grpc
from paceline.workflow.api import CostReader

_Context = ServicerContext[Any, Any]


class CostServicer(pb_grpc.CostServiceServicer):
    """Converts and asks the ledger."""

    def __init__(self, costs: CostReader) -> None:
        self._costs = costs

    async def GetWorkflowCost(
        self, request: pb.GetWorkflowCostRequest, context: _Context
    ) -> pb.GetWorkflowCostResponse:
        """Return the cost of a workflow."""
        summary = await self._costs.workflow_cost(
            current_tenant(), request.workflow_id, include_children=request.include_children
        )
        return pb.GetWorkflowCostResponse(summary=convert.summary_to_proto(summary))

    async def QueryCosts(self, request: pb.QueryCostsRequest, context: _Context) -> pb.QueryCostsResponse:
        """Return costs in groups."""
        page = await self._costs.query(
            current_tenant(),
            tuple(request.group_by),
            convert.filter_from_proto(request.filter),
            request.page_size,
            request.page_token,
        )
        return pb.QueryCostsResponse(
            summaries=[convert.summary_to_proto(summary) for summary in page.items],
            next_page_token=page.next_token,
        )
