"""Each error class as a client sees it over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status
from structlog.testing import capture_logs
from tests.rpc.fakes import STARTED, Served, every_error_class, serving
from tests.rpc.test_services import HELLO

from paceline import errors
from paceline.config import Server
from paceline.rpc.status import CODES
from paceline.v1 import (
    cost_service_pb2,
    cost_service_pb2_grpc,
    message_pb2,
    step_service_pb2,
    workflow_pb2,
    workflow_service_pb2,
    workflow_service_pb2_grpc,
)
from paceline.v1 import step_service_pb2 as pb
from paceline.v1 import step_service_pb2_grpc as pb_grpc
from paceline.workflow.events import StepFailureInfo
from paceline.workflow.model import Cost, Usage


async def drain(call: Any) -> None:
    """Read a call to its end."""
    if not hasattr(call, "__aiter__"):
        await call
        return
    async for _ in call:
        pass


async def status_of(call: Any) -> Status:
    """Return the status of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await drain(call)
    status = await rpc_status.aio.from_call(call)
    assert status is not None
    assert status.code == caught.value.code().value[0]
    assert status.message == caught.value.details()
    assert isinstance(status, Status)
    return status


def detail(status: Status, kind: type[Any]) -> Any:
    """Return the only detail of a kind; None without one."""
    found = [any_ for any_ in status.details if any_.Is(kind.DESCRIPTOR)]
    if not found:
        return None
    assert len(found) == 1
    message = kind()
    found[0].Unpack(message)
    return message


def test_each_error_class_has_a_code() -> None:
    assert set(every_error_class()) == set(CODES)


def test_each_reason_belongs_to_one_class() -> None:
    reasons = [error.reason for error in every_error_class()]
    assert sorted(set(reasons)) == sorted(reasons)


@pytest.mark.parametrize("error_class", every_error_class())
@pytest.mark.parametrize("streams", [False, True])
async def test_each_error_arrives(served: Served, error_class: type[errors.PacelineError], streams: bool) -> None:
    error = error_class("field: wrong; do better", model="m", count=3)
    served.steps.error = error
    served.steps.script = (STARTED, error)
    stub = pb_grpc.StepServiceStub(served.channel)
    status = await status_of(
        stub.RunStep(HELLO) if streams else stub.GetStep(pb.GetStepRequest(step_id="step-0001"))
    )
    assert status.code == CODES[error_class].value[0]
    assert status.message == "field: wrong; do better"
    info = detail(status, ErrorInfo)
    assert (info.reason, info.domain) == (error_class.reason, "paceline.dev")
    assert dict(info.metadata) == {"model": "m", "count": "3"}
    assert (detail(status, RetryInfo) is not None) == (status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    assert detail(status, step_service_pb2.StepFailure) is None


async def test_a_bad_field_is_named(served: Served) -> None:
    request = pb.RunStepRequest()
    request.CopyFrom(HELLO)
    request.append.messages.add(role=message_pb2.ROLE_USER, content="x")
    request.append.messages.add(role=message_pb2.ROLE_UNSPECIFIED, content="x")
    status = await status_of(pb_grpc.StepServiceStub(served.channel).RunStep(request))
    assert detail(status, ErrorInfo).reason == "INVALID_MESSAGE"
    (violation,) = detail(status, BadRequest).field_violations
    assert violation.field == "append.messages[2].role"
    assert violation.description == status.message


async def test_a_failure_after_dispatch_tells_its_usage(served: Served) -> None:
    error = errors.EngineLost("replica a: connection lost", replica="a")
    error.failure = StepFailureInfo("step-0001", Usage(uncached_prompt=9, output=2), Cost(list_nanos=77))
    served.steps.script = (STARTED, error)
    status = await status_of(pb_grpc.StepServiceStub(served.channel).RunStep(HELLO))
    failure = detail(status, step_service_pb2.StepFailure)
    assert failure.step_id == "step-0001"
    assert (failure.usage.uncached_prompt_token_count, failure.cost.list_cost_usd_nanos) == (9, 77)
    assert not failure.usage.HasField("cached_prompt_token_count")


@pytest.mark.parametrize("text", ["x", "é", "汉", "🚴", "\n", "\ud800"])
async def test_a_long_error_fits_into_the_headers(served: Served, text: str) -> None:
    error = errors.InvalidArgument(text * 100_000, field=text * 100_000, value=text * 100_000)
    error.failure = StepFailureInfo("step-0001" * 7, Usage(1, 1, 1, 1, 1), Cost(1, 1, "price" * 10))
    served.steps.script = (STARTED, error)
    status = await status_of(pb_grpc.StepServiceStub(served.channel).RunStep(HELLO))
    assert detail(status, ErrorInfo).reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize("streams", [False, True])
async def test_an_unknown_exception_leaks_nothing(served: Served, streams: bool) -> None:
    secret = RuntimeError("password=hunter2")
    served.steps.error = secret
    served.steps.script = (STARTED, secret)
    stub = pb_grpc.StepServiceStub(served.channel)
    with capture_logs() as logs:
        status = await status_of(
            stub.RunStep(HELLO) if streams else stub.GetStep(pb.GetStepRequest(step_id="step-0001"))
        )
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "hunter2" not in str(status)
    assert detail(status, ErrorInfo).reason == "INTERNAL"
    crashes = [line for line in logs if line["event"] == "call.crashed"]
    assert len(crashes) == 1
    assert crashes[0]["exc_info"]


async def test_a_cancelled_call_is_no_failure_in_the_log(served: Served) -> None:
    served.steps.script = (STARTED, None)
    with capture_logs() as logs:
        call = pb_grpc.StepServiceStub(served.channel).RunStep(HELLO)
        await call.read()
        call.cancel()
        await served.steps.closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
    assert logs == []


BAD_REQUESTS: list[tuple[str, Callable[[grpc.aio.Channel], Any]]] = [
    ("input", lambda c: pb_grpc.StepServiceStub(c).RunStep(pb.RunStepRequest(workflow_id="workflow-1"))),
    ("on_busy", lambda c: pb_grpc.StepServiceStub(c).RunStep(pb.RunStepRequest(append=pb.Append(), on_busy=99))),  # type: ignore[arg-type] # a value of a newer client
    (
        "outcome.kind",
        lambda c: workflow_service_pb2_grpc.WorkflowServiceStub(c).FinishWorkflow(
            workflow_service_pb2.FinishWorkflowRequest(workflow_id="workflow-1")
        ),
    ),
    (
        "outcome.source",
        lambda c: workflow_service_pb2_grpc.WorkflowServiceStub(c).FinishWorkflow(
            workflow_service_pb2.FinishWorkflowRequest(
                outcome=workflow_pb2.Outcome(kind=workflow_pb2.OUTCOME_KIND_FAILED)
            )
        ),
    ),
    (
        "filter.create_time_to",
        lambda c: cost_service_pb2_grpc.CostServiceStub(c).QueryCosts(
            cost_service_pb2.QueryCostsRequest(filter={"create_time_to": {"seconds": 1 << 60}})  # type: ignore[arg-type] # protobuf takes dicts
        ),
    ),
]


@pytest.mark.parametrize(("field", "call"), BAD_REQUESTS, ids=[field for field, _ in BAD_REQUESTS])
async def test_what_no_command_can_hold_is_refused(
    served: Served, field: str, call: Callable[[grpc.aio.Channel], Any]
) -> None:
    status = await status_of(call(served.channel))
    assert detail(status, BadRequest).field_violations[0].field == field


async def test_an_oversized_message_is_refused_and_reaches_no_use_case() -> None:
    async with serving(Server(listen="127.0.0.1:0", max_message_mib=1)) as served:
        request = pb.RunStepRequest()
        request.CopyFrom(HELLO)
        request.append.messages[0].content = "x" * (1024 * 1024)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in pb_grpc.StepServiceStub(served.channel).RunStep(request):
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in (caught.value.details() or "")
        assert served.steps.commands == []
        request.append.messages[0].content = "x" * (1024 * 1024 - 100)
        async for _ in pb_grpc.StepServiceStub(served.channel).RunStep(request):
            pass
        assert len(served.steps.commands) == 1
