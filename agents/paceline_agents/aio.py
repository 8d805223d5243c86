"""The asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

from paceline.v1 import cost_service_pb2_grpc, step_service_pb2_grpc, workflow_service_pb2_grpc
from paceline.v1.cost_service_pb2 import GetWorkflowCostRequest
from paceline.v1.step_service_pb2 import CancelStepRequest, GetStepRequest, RunStepRequest
from paceline.v1.workflow_service_pb2 import DeleteWorkflowContentRequest, GetWorkflowRequest
from paceline_agents import _channel, _convert, _requests
from paceline_agents import types as t
from paceline_agents._retry import Retry
from paceline_agents._stream import EventReader
from paceline_agents.options import ConversationOptions, StepOptions, WorkflowOptions

if TYPE_CHECKING:
    from paceline.v1.cost_service_pb2_grpc import CostServiceAsyncStub
    from paceline.v1.step_service_pb2_grpc import StepServiceAsyncStub
    from paceline.v1.workflow_service_pb2_grpc import WorkflowServiceAsyncStub

Q = TypeVar("Q")
R = TypeVar("R")


class AsyncClient:
    """A connection to a Paceline server, to be used as an async context manager in one event loop.

    `root_certificates` switches TLS on: PEM text, or empty bytes for the usual roots. Every method raises the
    classes of `paceline.errors`; calls that failed with UNAVAILABLE are sent again where that is safe.
    """

    def __init__(
        self,
        target: str = _channel.DEFAULT_TARGET,
        *,
        api_key: str | None = None,
        root_certificates: bytes | None = None,
    ) -> None:
        credentials = _channel.credentials(root_certificates)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=_channel.OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options=_channel.OPTIONS)
        self._metadata = _channel.metadata(api_key)
        self._workflows: WorkflowServiceAsyncStub = workflow_service_pb2_grpc.WorkflowServiceStub(self._channel)
        self._steps: StepServiceAsyncStub = step_service_pb2_grpc.StepServiceStub(self._channel)
        self._costs: CostServiceAsyncStub = cost_service_pb2_grpc.CostServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; running streams end."""
        await self._channel.close()

    async def create_workflow(self, **options: Unpack[WorkflowOptions]) -> AsyncWorkflowHandle:
        """Create a workflow."""
        response = await self._call(self._workflows.CreateWorkflow, _requests.create_request(**options))
        return AsyncWorkflowHandle(self, _convert.workflow(response.workflow))

    async def get_workflow(self, workflow_id: str) -> AsyncWorkflowHandle:
        """A workflow that exists, to go on with it."""
        response = await self._call(self._workflows.GetWorkflow, GetWorkflowRequest(workflow_id=workflow_id))
        return AsyncWorkflowHandle(self, _convert.workflow(response.workflow))

    async def finish_workflow(
        self,
        workflow_id: str,
        outcome: t.OutcomeKind,
        *,
        source: t.OutcomeSource = t.OutcomeSource.CLIENT,
        note: str = "",
        check_exit_code: int | None = None,
    ) -> t.Workflow:
        """Close a workflow with its outcome, or correct the outcome of a closed one."""
        request = _requests.finish_request(workflow_id, outcome, source, note, check_exit_code)
        response = await self._call(self._workflows.FinishWorkflow, request)
        return _convert.workflow(response.workflow)

    async def fork_workflow(
        self,
        workflow_id: str,
        step_id: str = "",
        *,
        new_workflow_id: str = "",
        labels: dict[str, str] | None = None,
    ) -> AsyncWorkflowHandle:
        """A new workflow that shares the transcript up to a finished step (empty: the last one)."""
        request = _requests.fork_request(workflow_id, step_id, new_workflow_id, labels)
        response = await self._call(self._workflows.ForkWorkflow, request)
        return AsyncWorkflowHandle(self, _convert.workflow(response.workflow))

    async def delete_workflow_content(self, workflow_id: str) -> t.Workflow:
        """Delete the texts and token ids of a workflow for good; counts, hashes and costs stay."""
        request = DeleteWorkflowContentRequest(workflow_id=workflow_id)
        return _convert.workflow((await self._call(self._workflows.DeleteWorkflowContent, request)).workflow)

    async def cost(self, workflow_id: str, *, include_children: bool = False) -> t.CostSummary:
        """What a workflow has cost so far, with the workflows that work for it if asked."""
        request = GetWorkflowCostRequest(workflow_id=workflow_id, include_children=include_children)
        response = await self._call(self._costs.GetWorkflowCost, request)
        return _convert.cost_summary(response.summary)

    async def get_step(self, *, step_id: str = "", request_id: str = "") -> t.Step:
        """A step by one of its two ids."""
        request = GetStepRequest(step_id=step_id, request_id=request_id)
        return _convert.step((await self._call(self._steps.GetStep, request)).step)

    async def cancel_step(self, *, step_id: str = "", request_id: str = "") -> t.Step:
        """Abort a running step, by one of its two ids; one that has ended is left as it is."""
        request = CancelStepRequest(step_id=step_id, request_id=request_id)
        return _convert.step((await self._call(self._steps.CancelStep, request)).step)

    def step(self, workflow_id: str, content: _requests.Input, **options: Unpack[StepOptions]) -> AsyncStepStream:
        """Run one step; it starts when the stream is read. A plain text is one message of the user."""
        request = _requests.run_request(workflow_id, content, **options)
        return AsyncStepStream(self._steps, request, self._metadata, options.get("timeout"))

    def run_conversation(
        self, messages: Iterable[t.Message], **options: Unpack[ConversationOptions]
    ) -> AsyncStepStream:
        """Run one step of a whole conversation whose workflow the server finds by its messages, or makes: see
        `Started.workflow_id` and `Started.match`. It starts when the stream is read."""
        request = _requests.conversation_request(messages, **options)
        return AsyncStepStream(self._steps, request, self._metadata, options.get("timeout"))

    async def _call(self, method: grpc.aio.UnaryUnaryMultiCallable[Q, R], request: Q) -> R:
        retry = Retry(None)
        while True:
            try:
                return await method(request, metadata=self._metadata)
            except grpc.RpcError as failed:
                await asyncio.sleep(retry.delay_after(failed))


class AsyncWorkflowHandle:
    """A workflow on the server. `info` is what the server said when the handle was made."""

    def __init__(self, client: AsyncClient, info: t.Workflow) -> None:
        self._client = client
        self.info = info

    @property
    def workflow_id(self) -> str:
        """Its id."""
        return self.info.workflow_id

    def step(self, content: _requests.Input, **options: Unpack[StepOptions]) -> AsyncStepStream:
        """Run one step; it starts when the stream is read. A plain text is one message of the user."""
        return self._client.step(self.workflow_id, content, **options)

    async def finish(
        self,
        outcome: t.OutcomeKind,
        *,
        source: t.OutcomeSource = t.OutcomeSource.CLIENT,
        note: str = "",
        check_exit_code: int | None = None,
    ) -> t.Workflow:
        """Close it with its outcome, or correct the outcome."""
        return await self._client.finish_workflow(
            self.workflow_id, outcome, source=source, note=note, check_exit_code=check_exit_code
        )

    async def fork(self, step_id: str = "", *, labels: dict[str, str] | None = None) -> AsyncWorkflowHandle:
        """A new workflow that shares the transcript up to a finished step (empty: the last one)."""
        return await self._client.fork_workflow(self.workflow_id, step_id, labels=labels)

    async def delete_content(self) -> t.Workflow:
        """Delete its texts and token ids for good; counts, hashes and costs stay."""
        return await self._client.delete_workflow_content(self.workflow_id)

    async def cost(self, *, include_children: bool = False) -> t.CostSummary:
        """What it has cost so far."""
        return await self._client.cost(self.workflow_id, include_children=include_children)


class AsyncStepStream:
    """The events of one step: iterate, or await it (or `result()`) for the answer; each event comes once.

    A broken connection is resumed under the same request id. Leaving the context or `close` lets go of the step.
    """

    def __init__(
        self,
        steps: StepServiceAsyncStub,
        request: RunStepRequest,
        metadata: tuple[tuple[str, str], ...],
        timeout: float | None,
    ) -> None:
        self._steps, self._request, self._metadata = steps, request, metadata
        self._retry = Retry(timeout)
        self._reader = EventReader()
        self._events = self._run()

    @property
    def request_id(self) -> str:
        """The idempotency key: running the same request under it again never bills twice."""
        return self._request.request_id

    def __aiter__(self) -> AsyncIterator[t.Event]:
        return self._events

    def __await__(self) -> Generator[Any, None, t.Answer]:
        return self.result().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def result(self) -> t.Answer:
        """Read to the end and return the answer."""
        async for _ in self._events:
            pass
        return self._reader.result()

    async def close(self) -> None:
        """Let go of the step. The server aborts it after its `detach_grace` if nobody else reads it."""
        await self._events.aclose()

    async def _run(self) -> AsyncGenerator[t.Event, None]:
        while True:
            call = self._steps.RunStep(self._request, timeout=self._retry.remaining(), metadata=self._metadata)
            try:
                async for response in call:
                    for event in self._reader.read(response):
                        yield event
                    self._retry.reached(self._reader.position)
                return
            except grpc.RpcError as failed:
                await asyncio.sleep(self._retry.delay_after(failed))
                self._reader.rewind()
            finally:
                call.cancel()
