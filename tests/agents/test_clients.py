"""Both clients against a real server: requests, events, errors, and what is sent again."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import grpc
import pytest
from tests.agents.scripted import Failure, Served, finished, started, text, tool_call

from paceline import errors
from paceline.v1 import step_service_pb2, usage_pb2, workflow_pb2
from paceline_agents import (
    Answer,
    AsyncClient,
    Client,
    Event,
    Finished,
    Message,
    OnBusy,
    OutcomeKind,
    OutcomeSource,
    Restarted,
    Role,
    Started,
    StorePolicy,
    TextDelta,
    Tool,
    ToolCallReady,
    step_failure,
)

GONE = Failure(grpc.StatusCode.UNAVAILABLE)


async def events_async(target: str, **options: Any) -> tuple[list[Event], Answer]:
    async with AsyncClient(target) as client:
        stream = client.step("workflow-1", "hi", **options)
        return [event async for event in stream], await stream


async def events_sync(target: str, **options: Any) -> tuple[list[Event], Answer]:
    def run() -> tuple[list[Event], Answer]:
        with Client(target) as client:
            stream = client.step("workflow-1", "hi", **options)
            return list(stream), stream.result()

    return await asyncio.to_thread(run)


Run = Callable[..., Awaitable[tuple[list[Event], Answer]]]
both = pytest.mark.parametrize("run", [events_async, events_sync])


def texts(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@both
async def test_a_step_streams_typed_events_and_ends_with_the_answer(served: Served, run: Run) -> None:
    served.script.runs = [[started(), text("he"), text("y"), finished("hey")]]

    events, answer = await run(served.target)

    assert [type(event) for event in events] == [Started, TextDelta, TextDelta, Finished]
    assert (answer.text, answer.finish_reason, answer.step_id) == ("hey", "stop", "step-0001")
    assert answer.usage.uncached_prompt == 3
    assert (answer.usage.output, answer.usage.output_source) == (0, "engine")
    assert answer.usage.cached_prompt is None
    assert (answer.timings.decode, answer.timings.first_token) == (1.5, None)
    assert (answer.cost.list_nanos, answer.cost.infrastructure_nanos) == (7, None)


@both
async def test_a_broken_stream_is_resumed_without_gap_or_repeat(served: Served, run: Run) -> None:
    served.script.runs = [
        [started(), text("one "), text("two "), GONE],
        [started(replayed=True), text("one t"), GONE],
        [
            started(replayed=True),
            text("one two th"),
            text("ree"),
            tool_call("look", "c1"),
            finished("one two three"),
        ],
    ]

    events, answer = await run(served.target)

    assert texts(events) == "one two three"
    kinds = [type(event) for event in events]
    assert kinds.count(Started) == kinds.count(ToolCallReady) == kinds.count(Finished) == 1
    assert answer.text == "one two three"
    sent = served.script.requests
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    assert len(sent[0].request_id) == 32


@both
@pytest.mark.parametrize("second", [[text("other")], [text("on")]], ids=["contradicts", "ends early"])
async def test_another_answer_after_a_break_restarts_the_events(
    served: Served, run: Run, second: list[step_service_pb2.RunStepResponse]
) -> None:
    whole = second[0].text_delta.text
    served.script.runs = [[started(), text("one"), GONE], [started(), *second, finished(whole)]]

    events, answer = await run(served.target)

    at = events.index(Restarted())
    assert texts(events[:at]) == "one"
    assert texts(events[at:]) == whole == answer.text


@both
async def test_a_tool_call_is_delivered_once_although_its_id_changed(served: Served, run: Run) -> None:
    served.script.runs = [
        [started(), tool_call("look", "c1"), GONE],
        [started(), tool_call("look", "c2"), tool_call("edit", "c3"), finished("")],
    ]

    events, _ = await run(served.target)

    names = [event.tool_call.tool_name for event in events if isinstance(event, ToolCallReady)]
    assert names == ["look", "edit"]


@both
@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_MESSAGE", {"field": "append"}), errors.InvalidMessage),
        (Failure(grpc.StatusCode.NOT_FOUND, "WORKFLOW_NOT_FOUND"), errors.WorkflowNotFound),
        (Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"), errors.QueueFull),
        (Failure(grpc.StatusCode.UNAVAILABLE, "LEDGER_IN_USE"), errors.LedgerInUse),
    ],
    ids=lambda value: value.reason if isinstance(value, Failure) else "",
)
async def test_an_error_that_another_try_does_not_help_is_raised_at_once(
    served: Served, run: Run, failure: Failure, kind: type[errors.PacelineError]
) -> None:
    served.script.runs = [[failure]]

    with pytest.raises(kind, match=failure.reason) as caught:
        await run(served.target)

    assert len(served.script.requests) == 1
    assert caught.value.metadata == {"grpc_code": failure.code.name, **failure.metadata}


@both
async def test_an_unknown_reason_becomes_the_root_class_with_code_and_reason(served: Served, run: Run) -> None:
    served.script.runs = [[Failure(grpc.StatusCode.ABORTED, "FROM_THE_FUTURE", {"what": "x"})]]

    with pytest.raises(errors.PacelineError) as caught:
        await run(served.target)

    assert type(caught.value) is errors.PacelineError
    assert caught.value.metadata == {"grpc_code": "ABORTED", "reason": "FROM_THE_FUTURE", "what": "x"}


@both
async def test_a_failure_after_the_dispatch_says_what_it_cost(served: Served, run: Run) -> None:
    cost = step_service_pb2.StepFailure(step_id="step-0001", usage=usage_pb2.Usage(output_token_count=5))
    served.script.runs = [[started(), Failure(grpc.StatusCode.CANCELLED, "STEP_CANCELLED", step=cost)]]

    with pytest.raises(errors.StepCancelled) as caught:
        await run(served.target)

    failure = step_failure(caught.value)
    assert failure is not None
    assert (failure.step_id, failure.usage.output, failure.usage.cached_prompt) == ("step-0001", 5, None)


@both
async def test_a_retryable_reason_is_tried_again_but_not_for_ever(served: Served, run: Run) -> None:
    lost = Failure(grpc.StatusCode.UNAVAILABLE, "ENGINE_UNAVAILABLE")
    served.script.runs = [[lost] for _ in range(20)]

    with pytest.raises(errors.EngineUnavailable):
        await run(served.target)

    assert 2 <= len(served.script.requests) < 10


@both
async def test_a_step_that_fails_at_the_same_place_is_not_run_for_ever(served: Served, run: Run) -> None:
    lost = Failure(grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST")
    served.script.runs = [[started(), text("half"), lost] for _ in range(20)]

    with pytest.raises(errors.EngineLost):
        await run(served.target)

    assert 2 <= len(served.script.requests) < 10


@both
async def test_a_step_that_comes_further_each_time_is_run_to_its_end(served: Served, run: Run) -> None:
    whole = "abcdefghi"
    served.script.runs = [[started(), text(whole[:length]), GONE] for length in range(1, 9)]
    served.script.runs.append([started(), text(whole), finished(whole)])

    events, answer = await run(served.target)

    assert (texts(events), answer.text) == (whole, whole)


@both
async def test_the_deadline_covers_all_tries(served: Served, run: Run) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    served.script.runs = [[started(), GONE], [hang]]

    with pytest.raises(errors.PacelineError) as caught:
        await run(served.target, timeout=1.0)

    assert caught.value.metadata["grpc_code"] == "DEADLINE_EXCEEDED"
    assert len(served.script.requests) == 2


@both
async def test_a_stream_without_an_end_is_an_error(served: Served, run: Run) -> None:
    served.script.runs = [[started(), text("half")]]

    with pytest.raises(errors.InternalError, match="request_id"):
        await run(served.target)


async def test_nobody_listening_is_an_error_with_the_code() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(errors.PacelineError) as caught:
            await events_async(f"127.0.0.1:{taken.getsockname()[1]}", timeout=0.5)

    assert caught.value.metadata["grpc_code"] in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


async def test_closing_an_async_stream_lets_go_of_the_step(served: Served) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    served.script.runs = [[started(), text("a"), hang]]
    async with AsyncClient(served.target) as client, client.step("workflow-1", "hi") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await begun.wait()
        await stream.close()
        await gone.wait()

    assert served.script.cancelled == 1


async def test_closing_a_sync_stream_lets_go_of_the_step(served: Served) -> None:
    begun, gone = threading.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    served.script.runs = [[started(), text("a"), hang]]

    def read_a_little() -> None:
        with Client(served.target) as client, client.step("workflow-1", "hi") as stream:
            assert isinstance(next(iter(stream)), Started)
            assert begun.wait(30)

    await asyncio.to_thread(read_a_little)
    await gone.wait()


async def test_every_option_of_a_step_travels(served: Served) -> None:
    served.script.runs = [[started(), finished("")]]
    async with AsyncClient(served.target, api_key="secret") as client:
        await client.step(
            "workflow-1",
            [Message(Role.USER, "hi"), Message(Role.TOOL, "42", tool_call_id="c1")],
            request_id="request-1",
            parent_step_id="step-0000",
            whole_conversation=True,
            tools=[],
            on_busy=OnBusy.FAIL,
            detach_grace=2.5,
            temperature=0.0,
            seed=7,
            max_output_tokens=9,
            stop=["\n"],
        )

    (sent,) = served.script.requests
    assert [message.content for message in sent.conversation.messages] == ["hi", "42"]
    assert (sent.request_id, sent.parent_step_id) == ("request-1", "step-0000")
    assert sent.HasField("tools")
    assert sent.on_busy == step_service_pb2.ON_BUSY_FAIL
    assert sent.detach_grace.ToTimedelta().total_seconds() == 2.5
    assert sent.sampling.HasField("temperature")
    assert not sent.sampling.HasField("top_p")
    assert (sent.sampling.seed, sent.sampling.max_output_token_count, sent.sampling.stop) == (7, 9, ["\n"])
    assert served.script.metadata[0]["authorization"] == "Bearer secret"


async def test_the_async_client_creates_forks_finishes_and_asks(served: Served) -> None:
    async with AsyncClient(served.target) as client:
        workflow = await client.create_workflow(
            system="be brief",
            labels={"team": "a"},
            tools=[Tool("look")],
            budget_steps=3,
            store=StorePolicy.NONE,
            retention=timedelta(hours=1),
        )
        fork = await workflow.fork("step-0001", labels={"try": "2"})
        closed = await fork.finish(
            OutcomeKind.FAILED, source=OutcomeSource.CHECK_COMMAND, note="pytest", check_exit_code=1
        )
        cost = await fork.cost()
        deleted = await fork.delete_content()
        again = await client.get_workflow(workflow.workflow_id)
        stored = await client.get_step(step_id="step-0001")
        cancelled = await client.cancel_step(request_id="request-1")

    create = served.script.requests[0]
    assert (create.system, create.budget.step_count, create.tools[0].tool_name) == ("be brief", 3, "look")
    assert (create.store, create.retention.seconds) == (workflow_pb2.STORE_POLICY_NONE, 3600)
    assert (deleted.workflow_id, workflow.info.content_deleted_at) == (fork.workflow_id, None)
    assert deleted.content_deleted_at is not None
    assert workflow.info.labels == {"team": "a"}
    assert (fork.info.parent_workflow_id, fork.info.forked_step_id) == (workflow.workflow_id, "step-0001")
    assert closed.outcome is not None
    assert (closed.outcome.kind, closed.outcome.check_exit_code) == (OutcomeKind.FAILED, 1)
    assert (cost.steps, cost.list_nanos, cost.cost_per_success_nanos) == (3, 42, None)
    assert again.info.outcome is None
    assert again.info.created_at is not None
    assert stored.answer is not None
    assert (stored.answer.text, stored.answer.finish_reason) == ("stored", "length")
    assert (cancelled.state, cancelled.answer, cancelled.error_reason) == ("cancelled", None, "STEP_CANCELLED")


async def test_the_sync_client_creates_forks_finishes_and_asks(served: Served) -> None:
    def run() -> None:
        with Client(served.target) as client:
            workflow = client.create_workflow(workflow_id="workflow-9", model="m")
            fork = workflow.fork()
            closed = fork.finish(OutcomeKind.SUCCEEDED)
            assert workflow.workflow_id == "workflow-9"
            assert fork.info.parent_workflow_id == "workflow-9"
            assert closed.outcome is not None
            assert (closed.outcome.source, closed.outcome.check_exit_code) == (OutcomeSource.CLIENT, None)
            assert workflow.cost(include_children=True).example_price
            assert client.get_workflow("workflow-9").info.model == "m"
            assert workflow.delete_content().content_deleted_at is not None
            assert client.get_step(step_id="step-0001").state == "finished"
            assert client.cancel_step(step_id="step-0001").state == "cancelled"

    await asyncio.to_thread(run)


async def test_creating_a_workflow_is_sent_again_with_the_same_id(served: Served) -> None:
    served.script.failures = [GONE, GONE]
    async with AsyncClient(served.target) as client:
        await client.create_workflow()

    ids = {request.workflow_id for request in served.script.requests}
    assert len(served.script.requests) == 3
    assert len(ids) == 1
