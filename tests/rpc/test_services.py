"""The servicers over a real socket."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from tests.rpc.fakes import FINISHED, STARTED, Served

from paceline.v1 import cost_service_pb2 as cost_pb
from paceline.v1 import cost_service_pb2_grpc as cost_grpc
from paceline.v1 import message_pb2, step_pb2, workflow_pb2
from paceline.v1 import step_service_pb2 as step_pb
from paceline.v1 import step_service_pb2_grpc as step_grpc
from paceline.v1 import workflow_service_pb2 as workflow_pb
from paceline.v1 import workflow_service_pb2_grpc as workflow_grpc
from paceline.workflow import events
from paceline.workflow.commands import Append, OnBusy
from paceline.workflow.costs import CostFilter
from paceline.workflow.model import Message, Role, Tool, ToolCall

HELLO = step_pb.RunStepRequest(
    workflow_id="workflow-1",
    append=step_pb.Append(messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content="Hi")]),
)


async def test_a_step_streams_all_kinds_of_events_in_order(served: Served) -> None:
    served.steps.script = (
        STARTED,
        events.Progress(events.Phase.QUEUED, 3, 1.5),
        events.ReasoningDelta("hm"),
        events.TextDelta("Hel"),
        events.ToolCallEvent(ToolCall("call_1", "read", "{}")),
        FINISHED,
    )
    answers = [answer async for answer in step_grpc.StepServiceStub(served.channel).RunStep(HELLO)]
    kinds = [answer.WhichOneof("event") for answer in answers]
    assert kinds == ["started", "progress", "reasoning_delta", "text_delta", "tool_call", "finished"]
    assert answers[1].progress.queue_position == 3
    assert answers[1].progress.waited.ToMilliseconds() == 1500
    assert answers[5].finished.usage.cached_prompt_token_count == 16
    assert not answers[5].finished.usage.HasField("reasoning_token_count")
    await served.steps.closed.wait()


async def test_a_step_request_becomes_a_command_of_the_default_tenant(served: Served) -> None:
    request = step_pb.RunStepRequest()
    request.CopyFrom(HELLO)
    request.on_busy = step_pb.ON_BUSY_FORK
    request.detach_grace.FromMilliseconds(1500)
    request.tools.tools.add(tool_name="read")
    request.sampling.temperature = 0
    async for _ in step_grpc.StepServiceStub(served.channel).RunStep(request):
        pass
    (command,) = served.steps.commands
    assert command.tenant == "default"
    assert command.input == Append((Message(Role.USER, "Hi"),))
    assert command.on_busy is OnBusy.FORK
    assert command.detach_grace == 1.5
    assert command.tools == (Tool("read"),)
    assert (command.sampling.temperature, command.sampling.top_p) == (0, None)


async def test_no_tools_and_an_empty_set_of_tools_differ(served: Served) -> None:
    stub = step_grpc.StepServiceStub(served.channel)
    empty = step_pb.RunStepRequest()
    empty.CopyFrom(HELLO)
    empty.tools.SetInParent()
    for request in (HELLO, empty):
        async for _ in stub.RunStep(request):
            pass
    assert [command.tools for command in served.steps.commands] == [None, ()]


async def test_a_cancelled_call_closes_the_use_case(served: Served) -> None:
    served.steps.script = (STARTED, None)
    call = step_grpc.StepServiceStub(served.channel).RunStep(HELLO)
    await call.read()
    call.cancel()
    await served.steps.closed.wait()


async def test_a_deadline_closes_the_use_case(served: Served) -> None:
    served.steps.script = (STARTED, None)
    call = step_grpc.StepServiceStub(served.channel).RunStep(HELLO, timeout=0.2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await served.steps.closed.wait()


async def test_a_reader_that_stops_reading_and_cancels_closes_the_use_case(served: Served) -> None:
    served.steps.script = [STARTED, *[events.TextDelta("x" * 1_000_000)] * 200]
    call = step_grpc.StepServiceStub(served.channel).RunStep(HELLO)
    await call.read()
    await served.steps.started.wait()
    call.cancel()
    await served.steps.closed.wait()


async def test_a_server_that_stops_closes_the_use_case(served: Served) -> None:
    served.steps.script = (STARTED, None)
    call = step_grpc.StepServiceStub(served.channel).RunStep(HELLO)
    await call.read()
    await served.server.stop(0)
    await served.steps.closed.wait()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call.read()


async def test_a_running_step_may_end_within_the_grace(served: Served) -> None:
    go_on = asyncio.Event()

    served.steps.script = (STARTED, go_on, FINISHED)
    call = step_grpc.StepServiceStub(served.channel).RunStep(HELLO)
    await call.read()
    stopping = asyncio.create_task(served.server.stop(30))
    go_on.set()
    last = await call.read()
    assert isinstance(last, step_pb.RunStepResponse)
    assert last.HasField("finished")
    await stopping


async def test_steps_are_found_and_listed(served: Served) -> None:
    stub = step_grpc.StepServiceStub(served.channel)
    found = (await stub.GetStep(step_pb.GetStepRequest(request_id="request-9"))).step
    assert (found.request_id, found.state) == ("request-9", step_pb2.STEP_STATE_FAILED)
    assert (found.error_reason, found.error_message) == ("ENGINE_LOST", "gone")
    assert not found.HasField("output")
    cancelled = await stub.CancelStep(step_pb.CancelStepRequest(step_id="step-0007"))
    assert cancelled.step.step_id == "step-0007"
    page = await stub.ListSteps(step_pb.ListStepsRequest(workflow_id="w", page_size=2, page_token="t"))
    assert len(page.steps) == 1
    assert page.next_page_token == "w/2/t"


async def test_a_workflow_lives(served: Served) -> None:
    stub = workflow_grpc.WorkflowServiceStub(served.channel)
    request = workflow_pb.CreateWorkflowRequest(workflow_id="workflow-7", model="m", labels={"team": "a"})
    created = (await stub.CreateWorkflow(request)).workflow
    assert created.create_time.ToDatetime(tzinfo=UTC) == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert not created.HasField("outcome")
    found = await stub.GetWorkflow(workflow_pb.GetWorkflowRequest(workflow_id="workflow-7"))
    assert found.workflow == created
    page = await stub.ListWorkflows(workflow_pb.ListWorkflowsRequest(labels={"team": "a"}))
    assert list(page.workflows) == [created]
    fork = workflow_pb.ForkWorkflowRequest(
        workflow_id="workflow-7", step_id="step-0001", new_workflow_id="workflow-8", labels={"try": "2"}
    )
    forked = (await stub.ForkWorkflow(fork)).workflow
    assert (forked.parent_workflow_id, forked.forked_step_id) == ("workflow-7", "step-0001")
    assert dict(forked.labels) == {"team": "a", "try": "2"}
    outcome = workflow_pb2.Outcome(
        kind=workflow_pb2.OUTCOME_KIND_SUCCEEDED, source=workflow_pb2.OUTCOME_SOURCE_CI, note="ok"
    )
    finished = await stub.FinishWorkflow(
        workflow_pb.FinishWorkflowRequest(workflow_id="workflow-7", outcome=outcome)
    )
    assert finished.workflow.outcome == outcome
    deleted = await stub.DeleteWorkflowContent(workflow_pb.DeleteWorkflowContentRequest(workflow_id="workflow-7"))
    assert deleted.workflow.HasField("content_delete_time")


async def test_parts_of_a_second_are_no_retention(served: Served) -> None:
    request = workflow_pb.CreateWorkflowRequest(workflow_id="workflow-7", store=workflow_pb2.STORE_POLICY_NONE)
    request.retention.FromSeconds(90)
    stub = workflow_grpc.WorkflowServiceStub(served.channel)
    created = (await stub.CreateWorkflow(request)).workflow
    assert (created.store, created.retention.seconds) == (workflow_pb2.STORE_POLICY_NONE, 90)
    request.retention.FromMilliseconds(90_500)
    with pytest.raises(grpc.aio.AioRpcError, match="retention: must be whole seconds"):
        await stub.CreateWorkflow(request)


async def test_costs_are_asked_and_answered(served: Served) -> None:
    stub = cost_grpc.CostServiceStub(served.channel)
    one = await stub.GetWorkflowCost(
        cost_pb.GetWorkflowCostRequest(workflow_id="workflow-1", include_children=True)
    )
    assert one.summary.list_cost_usd_nanos == 7
    assert not one.summary.HasField("cost_per_success_usd_nanos")
    start = Timestamp(seconds=1_700_000_000, nanos=5_000)
    page = await stub.QueryCosts(
        cost_pb.QueryCostsRequest(
            group_by=["model"],
            filter=cost_pb.CostFilter(create_time_from=start, models=["m"], labels={"team": "a"}),
            page_size=3,
            page_token="t",
        )
    )
    assert (list(page.summaries[0].group), page.next_page_token) == (["m"], "next")
    assert page.summaries[0].HasField("cost_per_success_usd_nanos")
    where = CostFilter(start.ToDatetime(tzinfo=UTC), None, ("m",), {"team": "a"})
    assert served.costs.asked == [
        ("default", "workflow-1", True),
        ("default", ("model",), where, 3, "t"),
    ]
