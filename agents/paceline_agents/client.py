"""The synchronous client. `paceline_agents.aio` has the asynchronous one."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc

from paceline.v1.cost_service_pb2 import GetWorkflowCostRequest
from paceline.v1.cost_service_pb2_grpc import CostServiceStub
from paceline.v1.step_service_pb2 import CancelStepRequest, GetStepRequest, RunStepRequest
from paceline.v1.step_service_pb2_grpc import StepServiceStub
from paceline.v1.workflow_service_pb2 import DeleteWorkflowContentRequest, GetWorkflowRequest
from paceline.v1.workflow_service_pb2_grpc import WorkflowServiceStub
from paceline_agents import _channel, _convert, _requests
from paceline_agents import types as t
from paceline_agents._retry import Retry
from paceline_agents._stream import EventReader
from paceline_agents.options import ConversationOptions, StepOptions, WorkflowOptions

Q = TypeVar("Q")
R = TypeVar("R")


class Client:
    """A connection to a Paceline server, to be used as a context manager; threads may share it.

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
            self._channel = grpc.insecure_channel(target, options=_channel.OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=_channel.OPTIONS)
        self._metadata = _channel.metadata(api_key)
        self._workflows = WorkflowServiceStub(self._channel)
        self._steps = StepServiceStub(self._channel)
        self._costs = CostServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; running streams end."""
        self._channel.close()

    def create_workflow(self, **options: Unpack[WorkflowOptions]) -> WorkflowHandle:
        """Create a workflow."""
        response = self._call(self._workflows.CreateWorkflow, _requests.create_request(**options))
        return WorkflowHandle(self, _convert.workflow(response.workflow))

    def get_workflow(self, workflow_id: str) -> WorkflowHandle:
        """A workflow that exists, to go on with it."""
        response = self._call(self._workflows.GetWorkflow, GetWorkflowRequest(workflow_id=workflow_id))
        return WorkflowHandle(self, _convert.workflow(response.workflow))

    def finish_workflow(
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
        return _convert.workflow(self._call(self._workflows.FinishWorkflow, request).workflow)

    def fork_workflow(
        self,
        workflow_id: str,
        step_id: str = "",
        *,
        new_workflow_id: str = "",
        labels: dict[str, str] | None = None,
    ) -> WorkflowHandle:
        """A new workflow that shares the transcript up to a finished step (empty: the last one)."""
        request = _requests.fork_request(workflow_id, step_id, new_workflow_id, labels)
        response = self._call(self._workflows.ForkWorkflow, request)
        return WorkflowHandle(self, _convert.workflow(response.workflow))

    def delete_workflow_content(self, workflow_id: str) -> t.Workflow:
        """Delete the texts and token ids of a workflow for good; counts, hashes and costs stay."""
        request = DeleteWorkflowContentRequest(workflow_id=workflow_id)
        return _convert.workflow((self._call(self._workflows.DeleteWorkflowContent, request)).workflow)

    def cost(self, workflow_id: str, *, include_children: bool = False) -> t.CostSummary:
        """What a workflow has cost so far, with the workflows that work for it if asked."""
        request = GetWorkflowCostRequest(workflow_id=workflow_id, include_children=include_children)
        return _convert.cost_summary(self._call(self._costs.GetWorkflowCost, request).summary)

    def get_step(self, *, step_id: str = "", request_id: str = "") -> t.Step:
        """A step by one of its two ids."""
        request = GetStepRequest(step_id=step_id, request_id=request_id)
        return _convert.step(self._call(self._steps.GetStep, request).step)

    def cancel_step(self, *, step_id: str = "", request_id: str = "") -> t.Step:
        """Abort a running step, by one of its two ids; one that has ended is left as it is."""
        request = CancelStepRequest(step_id=step_id, request_id=request_id)
        return _convert.step(self._call(self._steps.CancelStep, request).step)

    def step(self, workflow_id: str, content: _requests.Input, **options: Unpack[StepOptions]) -> StepStream:
        """Run one step; it starts when the stream is read. A plain text is one message of the user."""
        request = _requests.run_request(workflow_id, content, **options)
        return StepStream(self._steps, request, self._metadata, options.get("timeout"))

    def run_conversation(
        self, messages: Iterable[t.Message], **options: Unpack[ConversationOptions]
    ) -> StepStream:
        """Run one step of a whole conversation whose workflow the server finds by its messages, or makes: see
        `Started.workflow_id` and `Started.match`. It starts when the stream is read."""
        request = _requests.conversation_request(messages, **options)
        return StepStream(self._steps, request, self._metadata, options.get("timeout"))

    def _call(self, method: grpc.UnaryUnaryMultiCallable[Q, R], request: Q) -> R:
        retry = Retry(None)
        while True:
            try:
                return method(request, metadata=self._metadata)
            except grpc.RpcError as failed:
                time.sleep(retry.delay_after(failed))


class WorkflowHandle:
    """A workflow on the server. `info` is what the server said when the handle was made."""

    def __init__(self, client: Client, info: t.Workflow) -> None:
        self._client = client
        self.info = info

    @property
    def workflow_id(self) -> str:
        """Its id."""
        return self.info.workflow_id

    def step(self, content: _requests.Input, **options: Unpack[StepOptions]) -> StepStream:
        """Run one step; it starts when the stream is read. A plain text is one message of the user."""
        return self._client.step(self.workflow_id, content, **options)

    def finish(
        self,
        outcome: t.OutcomeKind,
        *,
        source: t.OutcomeSource = t.OutcomeSource.CLIENT,
        note: str = "",
        check_exit_code: int | None = None,
    ) -> t.Workflow:
        """Close it with its outcome, or correct the outcome."""
        return self._client.finish_workflow(
            self.workflow_id, outcome, source=source, note=note, check_exit_code=check_exit_code
        )

    def fork(self, step_id: str = "", *, labels: dict[str, str] | None = None) -> WorkflowHandle:
        """A new workflow that shares the transcript up to a finished step (empty: the last one)."""
        return self._client.fork_workflow(self.workflow_id, step_id, labels=labels)

    def delete_content(self) -> t.Workflow:
        """Delete its texts and token ids for good; counts, hashes and costs stay."""
        return self._client.delete_workflow_content(self.workflow_id)

    def cost(self, *, include_children: bool = False) -> t.CostSummary:
        """What it has cost so far."""
        return self._client.cost(self.workflow_id, include_children=include_children)


class StepStream:
    """The events of one step: iterate, or call `result()` for the answer; each event comes once.

    A broken connection is resumed under the same request id. Leaving the context or `close` lets go of the step.
    """

    def __init__(
        self,
        steps: StepServiceStub,
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

    def __iter__(self) -> Iterator[t.Event]:
        return self._events

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def result(self) -> t.Answer:
        """Read to the end and return the answer."""
        for _ in self._events:
            pass
        return self._reader.result()

    def close(self) -> None:
        """Let go of the step. The server aborts it after its `detach_grace` if nobody else reads it."""
        self._events.close()

    def _run(self) -> Generator[t.Event, None, None]:
        while True:
            call = self._steps.RunStep(self._request, timeout=self._retry.remaining(), metadata=self._metadata)
            try:
                for response in call:
                    yield from self._reader.read(response)
                    self._retry.reached(self._reader.position)
                return
            except grpc.RpcError as failed:
                time.sleep(self._retry.delay_after(failed))
                self._reader.rewind()
            finally:
                call.cancel()
