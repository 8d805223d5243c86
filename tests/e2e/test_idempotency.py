"""One request id, one answer, one bill: replay, attach, run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from paceline.errors import (
    ContextTooLong,
    RequestIdReused,
    StepCancelled,
    StepNotFinished,
    StepNotFound,
    WorkflowBusy,
    WorkflowFinished,
)
from paceline.v1.message_pb2 import Message, Role
from paceline.v1.step_service_pb2 import Append, RunStepRequest, StepFailure
from paceline.v1.step_service_pb2_grpc import StepServiceStub
from paceline_agents import types as t

SLOW = ("--step-seconds=0.02", "--prefill-fixed-seconds=0", "--reply-tokens=400")


async def events_until(stream: Any, kind: type) -> list[Any]:
    """Read a stream up to the first event of a kind."""
    seen = []
    async for event in stream:
        seen.append(event)
        if isinstance(event, kind):
            break
    return seen


async def ended(paceline: Any, request_id: str) -> Any:
    """The step, once the server has noticed that its client is gone."""
    for _ in range(500):
        step = await paceline.client.get_step(request_id=request_id)
        if step.state not in {"queued", "running"}:
            return step
        await asyncio.sleep(0.01)
    raise AssertionError("the step is still running")


async def test_a_finished_step_is_replayed_and_not_billed_again(
    emulator: Callable[..., Any], run: Callable[..., Any], ledger: Any
) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow(workflow_id="workflow-one")
        first = await workflow.step("hello", request_id="request-one")
    async with run(engine.url) as paceline:  # another process of the runtime, the same ledger
        again = paceline.client.step("workflow-one", "hello", request_id="request-one")
        started = (await events_until(again, t.Started)).pop()
        answer = await again.result()
        with pytest.raises(RequestIdReused):
            await paceline.client.step("workflow-one", "something else", request_id="request-one")
        rows = paceline.sql("select count(*) as n from attempts")
        step = await paceline.client.get_step(request_id="request-one")
    assert started.replayed
    assert (answer.text, answer.usage, answer.cost) == (first.text, first.usage, first.cost)
    assert rows == [{"n": 1}]
    assert step.step_id == first.step_id


async def test_a_second_caller_attaches_and_sees_all_of_it(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        one = workflow.step("hello", request_id="request-one", max_output_tokens=60)
        await events_until(one, t.TextDelta)
        two = workflow.step("hello", request_id="request-one", max_output_tokens=60)
        started = (await events_until(two, t.Started))[-1]
        answers = await asyncio.gather(one.result(), two.result())
        rows = paceline.sql("select count(*) as n from attempts")
    assert started.attached
    assert answers[0] == answers[1]
    assert rows == [{"n": 1}]


async def test_a_step_without_readers_is_aborted_and_runs_again_on_request(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        async with workflow.step("hello", request_id="request-one", max_output_tokens=40) as stream:
            await events_until(stream, t.TextDelta)
        gone = await ended(paceline, "request-one")
        answer = await workflow.step("hello", request_id="request-one", max_output_tokens=40)
        rows = paceline.sql("select number, state, error_reason, output_tokens from attempts order by number")
        cost = await workflow.cost()
    assert (gone.state, gone.error_reason) == ("cancelled", "CLIENT_GONE")
    assert answer.step_id == gone.step_id
    assert [(row["number"], row["state"], row["error_reason"]) for row in rows] == [
        (1, "cancelled", "CLIENT_GONE"),
        (2, "finished", ""),
    ]
    assert rows[0]["output_tokens"] > 0
    assert cost.attempts == 2
    assert cost.retry_nanos > 0
    assert cost.list_nanos == cost.retry_nanos + answer.cost.list_nanos


async def test_a_detached_step_runs_on_for_its_grace(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        options: dict[str, Any] = {"request_id": "request-one", "max_output_tokens": 30, "detach_grace": 60.0}
        async with workflow.step("hello", **options) as stream:
            await events_until(stream, t.Started)
        answer = await workflow.step("hello", **options)
        rows = paceline.sql("select state from attempts")
    assert answer.finish_reason == "length"
    assert rows == [{"state": "finished"}]


async def test_cancel_aborts_at_once_and_appends_nothing(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        stream = workflow.step("hello", request_id="request-one", detach_grace=60.0)
        await events_until(stream, t.TextDelta)
        step = await paceline.client.cancel_step(request_id="request-one")
        with pytest.raises(StepCancelled):
            await stream.result()
        with pytest.raises(StepCancelled):  # not retryable: the same id gives the same end
            await workflow.step("hello", request_id="request-one", detach_grace=60.0)
        head = (await paceline.client.get_workflow(workflow.workflow_id)).info.head_step_id
        with pytest.raises(StepNotFinished):
            await workflow.step("more", parent_step_id=step.step_id)
        rows = paceline.sql("select output_tokens from attempts")
    assert (step.state, step.error_reason) == ("cancelled", "STEP_CANCELLED")
    assert (step.answer, head) == (None, "")
    assert rows[0]["output_tokens"] > 0


async def test_a_deadline_ends_the_step(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        with pytest.raises(Exception, match=r"(?i)deadline"):
            await workflow.step("hello", request_id="request-one", timeout=0.3)
        step = await ended(paceline, "request-one")
        assert paceline.runtime.replicas.all()[0].load.running == 0
    assert (step.state, step.error_reason) == ("cancelled", "CLIENT_GONE")


async def test_a_busy_workflow_waits_fails_or_forks(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        base = await workflow.step("base", max_output_tokens=5)
        long = workflow.step("long", max_output_tokens=60)
        await events_until(long, t.TextDelta)
        with pytest.raises(WorkflowBusy):
            await workflow.step("now", on_busy=t.OnBusy.FAIL)
        fork = workflow.step("now", on_busy=t.OnBusy.FORK, max_output_tokens=5)
        forked = (await events_until(fork, t.Started)).pop().workflow_id
        waited = workflow.step("then", max_output_tokens=5)
        phase = (await events_until(waited, t.Progress)).pop().phase
        first, branch, last = await asyncio.gather(long.result(), fork.result(), waited.result())
        steps = {row["step_id"]: row["parent_step_id"] for row in paceline.sql("select * from steps")}
    assert phase == "workflow_busy"
    assert forked != workflow.workflow_id
    assert steps[branch.step_id] == base.step_id
    assert steps[last.step_id] == first.step_id


async def test_a_fork_of_a_busy_workflow_is_made_with_its_step(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*SLOW, "--max-model-len=512")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        long = workflow.step("long", max_output_tokens=60)
        await events_until(long, t.TextDelta)
        with pytest.raises(ContextTooLong):
            await workflow.step("word " * 600, on_busy=t.OnBusy.FORK)
        assert paceline.sql("select count(*) as n from workflows") == [{"n": 1}]
        branch = await workflow.step("now", on_busy=t.OnBusy.FORK, max_output_tokens=5)
        await long.result()
        of = paceline.sql("select workflow_id from steps where step_id = :id", id=branch.step_id)
        forks = paceline.sql("select workflow_id from workflows where parent_workflow_id is not null")
    assert of == forks


async def test_unknown_and_finished_things(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline:
        workflow = await paceline.client.create_workflow()
        with pytest.raises(StepNotFound):
            await workflow.step("x", parent_step_id="st_does_not_exist")
        await workflow.step("hello")
        await workflow.finish(t.OutcomeKind.SUCCEEDED, source=t.OutcomeSource.CHECK_COMMAND, check_exit_code=0)
        with pytest.raises(WorkflowFinished):
            await workflow.step("more")
        corrected = await workflow.finish(t.OutcomeKind.FAILED, source=t.OutcomeSource.PERSON, note="it was not")
        changes = paceline.sql("select kind, source from outcome_changes order by change_id")
    assert corrected.outcome is not None
    assert corrected.outcome.kind == "failed"
    assert [row["kind"] for row in changes] == ["succeeded", "failed"]


async def test_an_engine_that_dies_is_a_clean_error_with_the_bill(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    first, second = emulator("--time-scale=0"), emulator("--time-scale=0")
    async with run(first.url, second.url) as paceline:
        workflow = await paceline.client.create_workflow()
        home = (await workflow.step("hello")).replica
        await {"e0": first, "e1": second}[home].fault(kind="exit", after_tokens=8)
        stream = workflow.step("again", request_id="request-one")
        answer = await stream.result()  # the client repeats what is retryable, under the same id
        rows = paceline.sql("select * from attempts where step_id = :step order by number", step=answer.step_id)
        later = await workflow.step("and again")
    assert (rows[0]["state"], rows[0]["error_reason"], rows[0]["replica"]) == ("failed", "ENGINE_LOST", home)
    assert rows[0]["output_tokens"] >= 8
    assert rows[0]["list_nanos"] > 0
    assert (rows[-1]["state"], rows[-1]["replica"] != home) == ("finished", True)
    assert answer.reuse.break_reason == "moved"
    assert later.replica == answer.replica
    assert later.usage.cached_prompt > 0


async def test_the_error_itself_carries_the_usage(emulator: Callable[..., Any], run: Callable[..., Any]) -> None:
    engine = emulator("--time-scale=0")
    async with run(engine.url) as paceline, grpc.aio.insecure_channel(paceline.target) as channel:
        workflow = await paceline.client.create_workflow()
        await engine.fault(kind="error", after_tokens=8)
        stub: Any = StepServiceStub(channel)  # bare: the client would repeat the step
        call = stub.RunStep(_request(workflow.workflow_id))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        rows = paceline.sql("select step_id, output_tokens, list_nanos from attempts")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    status = await rpc_status.aio.from_call(call)
    assert status is not None
    failure = StepFailure()
    assert any(detail.Unpack(failure) for detail in status.details)
    assert failure.step_id == rows[0]["step_id"]
    assert failure.usage.output_token_count == rows[0]["output_tokens"] >= 8
    assert failure.cost.list_cost_usd_nanos == rows[0]["list_nanos"] > 0


def _request(workflow_id: str) -> RunStepRequest:
    message = Message(role=Role.ROLE_USER, content="hello")
    return RunStepRequest(workflow_id=workflow_id, append=Append(messages=[message]))
