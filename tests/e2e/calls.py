"""Calls without the client's retries, and what their statuses say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from paceline.v1.message_pb2 import Message, Role, Sampling
from paceline.v1.step_service_pb2 import Append, RunStepRequest, RunStepResponse, StepFailure
from paceline.v1.step_service_pb2_grpc import StepServiceStub


@dataclass(frozen=True)
class Ended:
    """How a call ended: its code, the reason in its `ErrorInfo`, and what the step had used."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = ""
    failure: StepFailure | None = None
    responses: tuple[RunStepResponse, ...] = ()

    @property
    def verdict(self) -> tuple[str, str]:
        """Code and reason."""
        return self.code.name, self.reason

    @property
    def phases(self) -> list[int]:
        """The phases that the progress events showed."""
        return [one.progress.phase for one in self.responses if one.HasField("progress")]


def request(workflow_id: str, content: str = "hello", *, tokens: int = 0, **fields: Any) -> RunStepRequest:
    """A step that appends one message."""
    if tokens:
        fields["sampling"] = Sampling(max_output_token_count=tokens)
    message = Message(role=Role.ROLE_USER, content=content)
    return RunStepRequest(workflow_id=workflow_id, append=Append(messages=[message]), **fields)


async def read(call: Any, seen: list[RunStepResponse] | None = None) -> Ended:
    """Read a call to its end, whatever that is. `seen` shows the responses meanwhile."""
    responses = [] if seen is None else seen
    try:
        async for response in call:
            responses.append(response)
    except grpc.aio.AioRpcError as error:
        status = await rpc_status.aio.from_call(call)
        info, failure = ErrorInfo(), StepFailure()
        details = status.details if status else []
        found = [detail for detail in details if detail.Unpack(info)]
        failed = [detail for detail in details if detail.Unpack(failure)]
        return Ended(
            error.code(),
            info.reason if found else "",
            error.details() or "",
            failure if failed else None,
            tuple(responses),
        )
    return Ended(grpc.StatusCode.OK, responses=tuple(responses))


@asynccontextmanager
async def stub(target: str) -> AsyncIterator[Any]:
    """The step service on a channel of its own."""
    async with grpc.aio.insecure_channel(target) as channel:
        yield StepServiceStub(channel)
