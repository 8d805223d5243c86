"""Paceline is killed at any moment: nothing is lost that was promised, nothing stays behind."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.calls import read, request, stub
from tests.e2e.servers import LAUNCHED, MOMENTS, PACED, Crash, Server, check_books, free_port, installed, until

from paceline.errors import ShuttingDown
from paceline.v1.step_service_pb2 import StepPhase
from paceline_agents import types as t
from paceline_agents.aio import AsyncClient

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path, emulator: Callable[..., Any]) -> Iterator[Server]:
    """A server with an engine that somebody else runs (model m) and one that it starts itself (model n)."""
    far = {"model": "m", "url": emulator(*PACED).url}
    with installed(tmp_path / "paceline", {"engines": {"far": far, "near": LAUNCHED}}) as one:
        yield one


@pytest.mark.timeout(300)
async def test_a_killed_runtime_is_continued_by_the_next(server: Server) -> None:
    server.start()
    played = [await Crash(server, moment, seed).play() for seed, moment in enumerate(MOMENTS)]
    assert sum(crash["lost"] for crash in played) >= len(MOMENTS) // 2
    assert any(crash["checkpointed"] for crash in played)


async def test_a_second_server_on_the_ledger_is_refused_while_reports_read(server: Server) -> None:
    server.start()
    async with AsyncClient(server.target) as client:
        workflow = await client.create_workflow(model="m")
        await workflow.step("hello", max_output_tokens=4)
    second = server.run("serve")
    report = server.run("report", "--json")
    shown = server.run("workflow", "show", workflow.workflow_id)
    assert second.returncode == 1
    assert "LEDGER_IN_USE" in second.stderr
    assert str(server.process.pid if server.process else "") in second.stderr
    assert "Traceback" not in second.stderr
    assert (report.returncode, shown.returncode) == (0, 0), report.stderr + shown.stderr
    assert workflow.workflow_id in shown.stdout
    server.kill()
    assert server.start().stop() == 0


async def test_a_stop_signal_lets_steps_end_and_cuts_what_takes_longer(server: Server) -> None:
    server.start()
    async with AsyncClient(server.target) as client, stub(server.target) as steps:
        short, long = await client.create_workflow(model="m"), await client.create_workflow(model="n")
        seen: list[Any] = []
        slow = steps.RunStep(request(long.workflow_id, tokens=300, request_id="request-slow"))
        cut_off = asyncio.create_task(read(slow, seen))
        while not any(one.HasField("text_delta") for one in seen):
            await asyncio.sleep(0.01)
        quick = short.step("quick", max_output_tokens=12)
        async for event in quick:
            if isinstance(event, t.Progress):
                break
        code = asyncio.create_task(asyncio.to_thread(server.stop))
        answer = await quick.result()
        ended = await cut_off
        assert await code == 0
    assert answer.finish_reason == "length"
    assert ended.verdict == ("UNAVAILABLE", ShuttingDown.reason)
    assert ended.failure is not None
    rows = server.sql("select a.*, s.request_id from attempts a join steps s using (step_id)")
    by_request = {row["request_id"]: row for row in rows}
    cut = by_request.pop("request-slow")
    assert (cut["state"], cut["error_reason"]) == ("failed", ShuttingDown.reason)
    assert 0 < cut["output_tokens"] == ended.failure.usage.output_token_count < 300
    assert cut["list_nanos"] == ended.failure.cost.list_cost_usd_nanos > 0
    assert [row["state"] for row in by_request.values()] == ["finished"]
    assert server.processes() == []
    assert server.events("step")[-1]["error_reason"] == ShuttingDown.reason
    check_books(server.sql)


async def test_a_second_signal_does_not_wait_for_the_grace(tmp_path: Path, emulator: Callable[..., Any]) -> None:
    url = emulator("--step-seconds=0.05", "--reply-tokens=2000").url
    settings = {"engines": {"far": {"model": "m", "url": url}}, "server": {"shutdown_grace_seconds": 600}}
    with installed(tmp_path / "paceline", settings) as server:
        server.start()
        async with AsyncClient(server.target) as client:
            stream = (await client.create_workflow(model="m")).step("long", timeout=60)
            async for event in stream:
                if isinstance(event, t.TextDelta):
                    break
            assert server.process
            server.process.send_signal(signal.SIGINT)
            until(lambda: server.events("runtime_stopping"))
            assert await asyncio.to_thread(server.stop, signal.SIGINT) == 1
            await stream.close()
        assert [row["error_reason"] for row in server.sql("select * from attempts")] == [ShuttingDown.reason]
        check_books(server.sql)
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("setting", ["listen", "metrics_listen"])
def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path, setting: str) -> None:
    engines = {"near": LAUNCHED}
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with installed(tmp_path / "paceline", {"engines": engines, "server": {setting: address}}) as server:
            refused = server.run("serve")
            until(lambda: not server.processes())
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("error INVALID_CONFIG: ")
    assert address in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


async def test_a_client_goes_on_by_itself_after_a_crash(tmp_path: Path, emulator: Callable[..., Any]) -> None:
    url = emulator(*PACED).url
    listen = {"listen": f"127.0.0.1:{free_port()}"}
    with installed(
        tmp_path / "paceline", {"engines": {"far": {"model": "m", "url": url}}, "server": listen}
    ) as one:
        one.start()
        async with AsyncClient(one.target) as client:
            workflow = await client.create_workflow(model="m")
            stream = workflow.step("hello", max_output_tokens=100)
            heard: list[str] = []
            async for event in stream:
                if isinstance(event, t.TextDelta):
                    heard.append(event.text)
                    if len(heard) == 5:
                        one.kill()
                        await asyncio.to_thread(one.start)
            answer = await stream.result()
        assert "".join(heard) == answer.text  # no gap, no repeat
        assert [row["number"] for row in one.sql("select number from attempts order by number")] == [1, 2]
        check_books(one.sql)


async def test_an_engine_that_is_killed_comes_back(server: Server) -> None:
    server.start()
    async with AsyncClient(server.target) as client, stub(server.target) as steps:
        workflow = await client.create_workflow(model="n")
        await workflow.step("before", max_output_tokens=4)
        seen: list[Any] = []
        step = asyncio.create_task(
            read(steps.RunStep(request(workflow.workflow_id, request_id="request-one")), seen)
        )
        while not any(one.HasField("text_delta") for one in seen):
            await asyncio.sleep(0.01)
        (engine,) = [one for one in server.processes() if "paceline.emulator" in one.cmdline()[1:3]]
        engine.kill()
        lost = await step
        assert lost.verdict == ("UNAVAILABLE", "ENGINE_LOST")
        again = await read(steps.RunStep(request(workflow.workflow_id, request_id="request-one", tokens=0)))
    assert again.code.name == "OK"
    assert StepPhase.STEP_PHASE_ENGINE_STARTING in again.phases
    assert again.responses[-1].finished.usage.cached_prompt_token_count == 0  # a new server
    assert server.stop() == 0
    check_books(server.sql)
    assert server.processes() == []
