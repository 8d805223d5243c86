"""Engines that are not there, refuse, stall or die: the reason, what is billed, and that it goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.e2e.calls import read, request, stub
from tests.e2e.conftest import Emulator
from tests.e2e.servers import FAST, check_idle, free_port

from paceline.v1.message_pb2 import Message, Role
from paceline.v1.step_service_pb2 import (
    Conversation,
    RunStepRequest,
    StepPhase,
)
from paceline.v1.usage_pb2 import ReuseBreak

pytestmark = pytest.mark.slow

MakeEmulator = Callable[..., Emulator]
Run = Callable[..., Any]


async def test_an_engine_that_is_not_there_is_waited_for_and_then_named(emulator: MakeEmulator, run: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    engines = {"e0": {"model": "m", "url": url, "start_timeout_seconds": 1.0}}
    async with run(url, ready=False, engines=engines) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ended = await read(steps.RunStep(request(workflow.workflow_id, request_id="request-one")))
        assert ended.verdict == ("UNAVAILABLE", "ENGINE_UNAVAILABLE")
        assert re.search(r"e0: no answer for 1 s", ended.message)
        assert ended.phases[0] == StepPhase.STEP_PHASE_ENGINE_STARTING
        at_once = await read(steps.RunStep(request(workflow.workflow_id, request_id="request-one")))
        assert at_once.verdict == ("UNAVAILABLE", "ENGINE_UNAVAILABLE")
        emulator(*FAST, f"--port={url.rpartition(':')[2]}")  # it comes after all
        await paceline.runtime.ready.wait()
        after = await read(steps.RunStep(request(workflow.workflow_id, request_id="request-one")))
        assert after.code.name == "OK"
        check_idle(paceline)


async def test_something_else_in_the_place_of_the_engine_is_named(run: Run) -> None:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<html>a page</html>")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", page)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with run(f"http://127.0.0.1:{port}", ready=False) as paceline, stub(paceline.target) as steps:
            workflow = await paceline.client.create_workflow()
            ended = await read(steps.RunStep(request(workflow.workflow_id)))
            assert ended.verdict == ("UNAVAILABLE", "ENGINE_UNAVAILABLE")
            assert "is not vLLM's; check the engine's url" in ended.message
            check_idle(paceline)
    finally:
        await runner.cleanup()


async def test_an_engine_that_cannot_start_is_named_with_the_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    engines = {"broken": {"model": "m", "platform": "emulated", "extra_args": ["--no-such-flag"]}}
    async with run(ready=False, engines=engines) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ended = await read(steps.RunStep(request(workflow.workflow_id)))
        assert ended.verdict == ("UNAVAILABLE", "ENGINE_UNAVAILABLE")
        assert "--no-such-flag" in ended.message
        check_idle(paceline)


async def test_what_an_engine_refuses_is_not_tried_again(emulator: MakeEmulator, run: Run) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ask = request(workflow.workflow_id, request_id="request-one")
        await engine.fault(kind="refuse", status=400)
        first, second = await read(steps.RunStep(ask)), await read(steps.RunStep(ask))
        assert first.verdict == second.verdict == ("FAILED_PRECONDITION", "ENGINE_REFUSED")
        assert paceline.sql("select state, error_reason from attempts") == [
            {"state": "failed", "error_reason": "ENGINE_REFUSED"}
        ]
        assert await engine.counts() == []
        check_idle(paceline)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "refuse", "status": 503}, "ENGINE_UNAVAILABLE"),
        ({"kind": "refuse", "status": 500}, "ENGINE_LOST"),
        ({"kind": "stall", "after_tokens": 5}, "ENGINE_LOST"),
        ({"kind": "abort", "after_tokens": 5}, "ENGINE_LOST"),
        ({"kind": "error", "after_tokens": 5}, "ENGINE_LOST"),
        ({"kind": "drop", "after_tokens": 5}, "ENGINE_LOST"),
    ],
)
async def test_an_engine_fault_is_retryable_and_billed(
    emulator: MakeEmulator, run: Run, fault: dict[str, Any], reason: str
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url, limits={"stall_seconds": 0.7}) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ask = request(workflow.workflow_id, request_id="request-one")
        await engine.fault(**fault)
        ended = await read(steps.RunStep(ask))
        assert ended.verdict == ("UNAVAILABLE", reason)
        (row,) = paceline.sql("select * from attempts")
        assert (row["state"], row["error_reason"]) == ("failed", reason)
        assert ended.failure is not None
        assert ended.failure.usage.output_token_count == row["output_tokens"] == fault.get("after_tokens", 0)
        assert (row["list_nanos"] or 0) == ended.failure.cost.list_cost_usd_nanos
        assert (row["list_nanos"] or 0) > 0 or not row["output_tokens"]
        assert (await read(steps.RunStep(ask))).code.name == "OK"
        assert [row["state"] for row in paceline.sql("select state from attempts order by number")] == [
            "failed",
            "finished",
        ]
        check_idle(paceline)


async def test_an_edited_conversation_that_runs_again_says_what_it_broke(emulator: MakeEmulator, run: Run) -> None:
    engine = emulator(*FAST)
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        one = Message(role=Role.ROLE_USER, content="one")
        for content in ("one", "two"):
            assert (await read(steps.RunStep(request(workflow.workflow_id, content)))).code.name == "OK"
        first = paceline.sql("select step_id, output from steps order by created_at, step_id")[0]
        said = Message(role=Role.ROLE_ASSISTANT, content=json.loads(first["output"])["content"])
        conversation = Conversation(messages=[one, said, Message(role=Role.ROLE_USER, content="other")])
        ask = RunStepRequest(workflow_id=workflow.workflow_id, request_id="request-one", conversation=conversation)
        await engine.fault(kind="refuse", status=503)
        assert (await read(steps.RunStep(ask))).verdict == ("UNAVAILABLE", "ENGINE_UNAVAILABLE")
        again = await read(steps.RunStep(ask))
        reuse = again.responses[-1].finished.reuse
        assert reuse.break_reason == ReuseBreak.REUSE_BREAK_EDITED_HISTORY
        assert (reuse.break_message_index, reuse.dropped_token_count > 0) == (2, True)
        (row,) = paceline.sql("select parent_step_id from steps where request_id = 'request-one'")
        assert row["parent_step_id"] == first["step_id"]
        check_idle(paceline)
