"""Bad input, cancels, deadlines and faults: a clear status, the ledger right, nothing left running."""

from __future__ import annotations

import asyncio
import re
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from ctypes import CDLL
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from tests.e2e.calls import Ended, read, request, stub
from tests.e2e.conftest import Emulator, Paceline
from tests.e2e.servers import check_books, free_port, installed

from paceline.errors import LedgerUnavailable, ModelNotFound
from paceline.ledger.store import SqlLedger
from paceline.v1.message_pb2 import Message, Role, Sampling, Tool
from paceline.v1.step_pb2 import StepState
from paceline.v1.step_service_pb2 import (
    Append,
    CancelStepRequest,
    RunStepRequest,
    RunStepResponse,
    StepPhase,
    ToolSet,
)
from paceline_agents.aio import AsyncClient

MakeEmulator = Callable[..., Emulator]
Run = Callable[..., Any]
FAST = ("--time-scale=0", "--reply-tokens=16")
SLOW_PREFILL = (*FAST[1:], "--prefill-token-seconds=0.01", "--max-num-batched-tokens=64")
SLOW = ("--step-seconds=0.02", "--prefill-fixed-seconds=0", "--reply-tokens=600")
UNKNOWN_ROLE: Any = 99


def check_idle(paceline: Paceline) -> None:
    """Nothing runs, waits or is owed."""
    replicas = paceline.runtime.replicas
    assert [one.load.running for one in replicas.all()] == [0] * len(replicas.all())
    assert replicas.queued() == 0
    check_books(paceline.sql)


def appended(workflow_id: str, *messages: Message, **fields: Any) -> RunStepRequest:
    """A step that appends these messages."""
    return RunStepRequest(workflow_id=workflow_id, append=Append(messages=messages), **fields)


HELLO = Message(role=Role.ROLE_USER, content="hello")
BAD = {
    "no messages": (appended("workflow-one"), "INVALID_ARGUMENT", "INVALID_MESSAGE"),
    "no input": (RunStepRequest(workflow_id="workflow-one"), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    "unknown role": (
        appended("workflow-one", Message(role=UNKNOWN_ROLE, content="x")),
        "INVALID_ARGUMENT",
        "INVALID_MESSAGE",
    ),
    "invalid tool schema": (
        appended(
            "workflow-one",
            HELLO,
            tools=ToolSet(tools=[Tool(tool_name="t", parameters_json='{"type": "nothing"}')]),
        ),
        "INVALID_ARGUMENT",
        "INVALID_TOOL",
    ),
    "invalid sampling": (
        appended("workflow-one", HELLO, sampling=Sampling(temperature=9)),
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
    ),
    "over-long context": (request("workflow-one", "word " * 600), "INVALID_ARGUMENT", "CONTEXT_TOO_LONG"),
    "oversized message": (request("workflow-one", "x" * (2 << 20)), "RESOURCE_EXHAUSTED", ""),
    "unknown workflow": (request("workflow-none"), "NOT_FOUND", "WORKFLOW_NOT_FOUND"),
    "malformed id": (request("w"), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    "unknown parent": (
        request("workflow-one", parent_step_id="st_nobody_knows"),
        "NOT_FOUND",
        "STEP_NOT_FOUND",
    ),
}


async def test_bad_input_has_a_clear_status_and_leaves_no_row(emulator: MakeEmulator, run: Run) -> None:
    engine = emulator(*FAST, "--max-model-len=512")
    async with run(engine.url, server={"max_message_mib": 1}) as paceline, stub(paceline.target) as steps:
        await paceline.client.create_workflow(workflow_id="workflow-one")
        with pytest.raises(ModelNotFound):
            await paceline.client.create_workflow(model="gpt-unknown")
        verdicts = {name: (await read(steps.RunStep(bad))).verdict for name, (bad, _, _) in BAD.items()}
        assert verdicts == {name: (code, reason) for name, (_, code, reason) in BAD.items()}
        assert paceline.sql("select (select count(*) from steps) s, (select count(*) from attempts) a") == [
            {"s": 0, "a": 0}
        ]
        assert await engine.counts() == []
        check_idle(paceline)
        assert (await read(steps.RunStep(request("workflow-one")))).code.name == "OK"


@dataclass
class Situation:
    """A step in one phase of its life."""

    paceline: Paceline
    steps: Any
    engine: Emulator | None
    workflow_id: str
    lock: sqlite3.Connection
    content: str = "hello"
    seen: list[RunStepResponse] = field(default_factory=list)

    def call(self, **options: Any) -> asyncio.Task[Ended]:
        """Run the step."""
        ask = request(self.workflow_id, self.content, request_id="request-one", tokens=300)
        return asyncio.create_task(read(self.steps.RunStep(ask, **options), self.seen))

    async def reached(self, phase: str) -> None:
        """Wait until the step is there."""
        while not self._is_in(phase):
            await asyncio.sleep(0.01)
        while phase == "closing" and self.engine and not await self.engine.counts():
            await asyncio.sleep(0.01)

    def _is_in(self, phase: str) -> bool:
        if phase in {"decode", "closing"}:
            return any(one.HasField("text_delta") for one in self.seen)
        wanted = StepPhase.Value(f"STEP_PHASE_{phase.upper()}")
        return any(one.progress.phase == wanted for one in self.seen if one.HasField("progress"))


PHASES = ("workflow_busy", "queued", "engine_starting", "prefill", "decode", "closing")


@asynccontextmanager
async def in_phase(
    phase: str, emulator: MakeEmulator, run: Run, ledger: Path, **options: Any
) -> AsyncIterator[tuple[Situation, asyncio.Task[Ended]]]:
    """A step that has come to a phase and stays there."""
    special = {"engine_starting": None, "prefill": SLOW_PREFILL, "closing": (*SLOW[:2], "--reply-tokens=20")}
    flags = special.get(phase, SLOW)
    engine = emulator(*flags) if flags else None
    url = engine.url if engine else f"http://127.0.0.1:{free_port()}"
    one_place = {"e0": {"model": "m", "url": url, "max_concurrent_steps": 1}}
    async with AsyncExitStack() as stack:
        paceline = await stack.enter_async_context(run(url, ready=engine is not None, engines=one_place))
        steps = await stack.enter_async_context(stub(paceline.target))
        lock = stack.enter_context(closing(sqlite3.connect(ledger, isolation_level=None)))
        own = await paceline.client.create_workflow()
        content = "a long text " * 150 if phase == "prefill" else "hello"
        here = Situation(paceline, steps, engine, own.workflow_id, lock, content)
        if phase in {"workflow_busy", "queued"}:
            blocked = own if phase == "workflow_busy" else await paceline.client.create_workflow()
            before = Situation(paceline, steps, engine, blocked.workflow_id, lock)
            blocker = asyncio.create_task(read(steps.RunStep(request(blocked.workflow_id)), before.seen))
            await before.reached("decode")
            stack.callback(blocker.cancel)
        step = here.call(**options)
        if phase == "closing":
            await here.reached("decode")
            lock.execute("BEGIN IMMEDIATE")
        await here.reached(phase)
        yield here, step
        assert step.done()


def unlock(here: Situation) -> None:
    """Let the ledger take writes again."""
    if here.lock.in_transaction:
        here.lock.execute("COMMIT")


WITHOUT_ROW = {"workflow_busy"}
WITHOUT_ATTEMPT = {"workflow_busy", "queued", "engine_starting"}


@pytest.mark.parametrize("phase", PHASES)
async def test_cancel_works_in_each_phase(emulator: MakeEmulator, run: Run, ledger: Path, phase: str) -> None:
    async with in_phase(phase, emulator, run, ledger) as (here, step):
        cancel = asyncio.create_task(_cancel(here))
        if phase == "closing":
            await asyncio.sleep(0.05)
            unlock(here)
        answer, ended = (await cancel).step, await step
        rows = _rows(here)
        if phase == "closing":  # the answer was complete, and it counts
            assert (ended.code.name, answer.state) == ("OK", StepState.STEP_STATE_FINISHED)
        else:
            assert ended.verdict == ("CANCELLED", "STEP_CANCELLED")
            assert (answer.state, answer.error_reason) == (StepState.STEP_STATE_CANCELLED, "STEP_CANCELLED")
        _check_rows(phase, rows, "STEP_CANCELLED")
        if phase == "prefill":
            assert (ended.failure and ended.failure.usage.HasField("output_token_count")) is True
        await _check_goes_on(here, phase)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_deadline_ends_the_step_in_each_phase(
    emulator: MakeEmulator, run: Run, ledger: Path, phase: str
) -> None:
    async with in_phase(phase, emulator, run, ledger, timeout=1.5) as (here, step):
        assert (await step).code.name == "DEADLINE_EXCEEDED"
        unlock(here)
        _check_rows(phase, await _ended_rows(here, phase), "CLIENT_GONE")
        await _check_goes_on(here, phase)


async def _cancel(here: Situation) -> Any:
    return await here.steps.CancelStep(CancelStepRequest(request_id="request-one"))


def _rows(here: Situation) -> list[dict[str, Any]]:
    return here.paceline.sql(
        "select s.state, s.error_reason, a.state as attempt, a.output_tokens, a.list_nanos from steps s "
        "left join attempts a using (step_id) where request_id = 'request-one'"
    )


async def _ended_rows(here: Situation, phase: str) -> list[dict[str, Any]]:
    """The rows, once the server has noticed that its client is gone."""
    while any(row["state"] in {"queued", "running"} for row in _rows(here)):
        await asyncio.sleep(0.01)
    if phase in WITHOUT_ROW:
        await asyncio.sleep(0.1)
    return _rows(here)


def _check_rows(phase: str, rows: list[dict[str, Any]], reason: str) -> None:
    if phase in WITHOUT_ROW:
        assert rows == []
        return
    (row,) = rows
    if phase == "closing":
        assert (row["state"], row["attempt"]) == ("finished", "finished")
        return
    assert (row["state"], row["error_reason"]) == ("cancelled", reason)
    assert row["attempt"] == (None if phase in WITHOUT_ATTEMPT else "cancelled")
    if phase == "decode":
        assert row["output_tokens"] > 0
        assert row["list_nanos"] > 0


async def _check_goes_on(here: Situation, phase: str) -> None:
    """The place, the turn and the engine are free again."""
    if phase in {"prefill", "decode"} and here.engine:
        while [row["finish_reason"] for row in await here.engine.counts()] != ["abort"]:
            await asyncio.sleep(0.01)
    if here.engine and phase not in {"workflow_busy", "queued"}:
        again = await read(here.steps.RunStep(request(here.workflow_id, tokens=4)))
        assert again.code.name == "OK"
        check_idle(here.paceline)


async def test_cancelling_without_an_id_ends_nothing(emulator: MakeEmulator, run: Run) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        step = asyncio.create_task(read(steps.RunStep(request(workflow.workflow_id, tokens=5))))
        nobody = asyncio.create_task(_verdict(steps.CancelStep(CancelStepRequest())))
        assert await nobody == "INVALID_ARGUMENT"
        assert (await step).code.name == "OK"


async def _verdict(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return str(caught.value.code().name)


async def test_a_caller_that_comes_back_at_once_gets_its_answer(emulator: MakeEmulator, run: Run) -> None:
    engine = emulator(*SLOW)
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        for round_ in range(10):
            ask = request(workflow.workflow_id, f"round {round_}", request_id=f"request-{round_}", tokens=4)
            call = steps.RunStep(ask)
            async for response in call:
                if response.HasField("text_delta"):
                    break
            call.cancel()
            await asyncio.sleep(0.001 * round_)
            assert (await read(steps.RunStep(ask))).code.name == "OK"
        check_idle(paceline)


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


async def test_a_locked_ledger_refuses_a_step_before_its_dispatch(
    emulator: MakeEmulator, run: Run, ledger: Path
) -> None:
    engine = emulator(*FAST)
    async with run(engine.url, ledger={"write_timeout_seconds": 0.5}) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ask = request(workflow.workflow_id, request_id="request-one")
        with closing(sqlite3.connect(ledger, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            ended = await read(steps.RunStep(ask))
            other.execute("COMMIT")
        assert ended.verdict == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
        assert "locked by another process" in ended.message
        assert await engine.counts() == []
        assert (await read(steps.RunStep(ask))).code.name == "OK"
        assert paceline.sql("select number, state from attempts") == [{"number": 1, "state": "finished"}]
        check_idle(paceline)


async def test_a_close_that_the_ledger_refuses_is_kept_and_the_answer_replayed(
    emulator: MakeEmulator, run: Run, ledger: Path
) -> None:
    engine = emulator("--step-seconds=0.02", "--reply-tokens=20")
    async with run(engine.url, ledger={"write_timeout_seconds": 0.5}) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ask = request(workflow.workflow_id, request_id="request-one")
        seen: list[RunStepResponse] = []
        first = asyncio.create_task(read(steps.RunStep(ask), seen))
        while not any(one.HasField("text_delta") for one in seen):
            await asyncio.sleep(0.005)
        with closing(sqlite3.connect(ledger, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert (await first).verdict == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
            again = asyncio.create_task(read(steps.RunStep(ask)))
            await asyncio.sleep(0.1)
            assert not again.done()
            other.execute("COMMIT")
            replayed = await again
        texts = [
            "".join(one.text_delta.text for one in responses if one.HasField("text_delta"))
            for responses in (seen, replayed.responses)
        ]
        assert texts[0] == texts[1] != ""
        assert len(await engine.counts()) == 1
        assert [row["state"] for row in paceline.sql("select state from attempts")] == ["finished"]
        check_idle(paceline)


async def test_an_open_that_was_committed_too_late_is_closed_again(
    emulator: MakeEmulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = emulator(*FAST)
    real = SqlLedger.open_step
    late: list[str] = []

    async def open_late(self: SqlLedger, step: Any, attempt: Any) -> None:
        await real(self, step, attempt)
        if not late:
            late.append(step.step_id)
            raise LedgerUnavailable

    monkeypatch.setattr(SqlLedger, "open_step", open_late)
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ask = request(workflow.workflow_id, request_id="request-one")
        assert (await read(steps.RunStep(ask))).verdict == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
        assert (await read(steps.RunStep(ask))).code.name == "OK"
        assert paceline.sql("select number, state, error_reason from attempts order by number") == [
            {"number": 1, "state": "failed", "error_reason": "LEDGER_UNAVAILABLE"},
            {"number": 2, "state": "finished", "error_reason": ""},
        ]
        assert len(await engine.counts()) == 1
        check_idle(paceline)


def _may_not_write_everything() -> None:
    """In the child: root, too, respects the mode of files."""
    cap_dac_override, drop_from_bounding_set = 1, 24
    CDLL(None).prctl(drop_from_bounding_set, cap_dac_override, 0, 0, 0)


def test_a_read_only_ledger_is_named_at_the_start(tmp_path: Path, emulator: MakeEmulator) -> None:
    engines = {"far": {"model": "m", "url": emulator(*FAST).url}}
    with installed(tmp_path / "paceline", {"engines": engines}) as server:
        server.start()
        assert server.stop() == 0
        server.ledger.chmod(0o444)
        refused = server.run("serve", preexec_fn=_may_not_write_everything)
    assert refused.returncode == 1
    assert "LEDGER_UNAVAILABLE" in refused.stderr.splitlines()[-1]
    assert "read-only" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


async def test_a_full_disk_refuses_steps_and_loses_nothing(tmp_path: Path, emulator: MakeEmulator) -> None:
    """A limit on the size of files stands for the disk: SQLite gets an error from the same write."""
    engines = {"far": {"model": "m", "url": emulator(*FAST).url}}
    with installed(tmp_path / "paceline", {"engines": engines}) as server:
        server.start()
        async with stub(server.target) as steps, AsyncClient(server.target) as client:
            workflows = [(await client.create_workflow(model="m")).workflow_id for _ in range(40)]
            limit = server.ledger.with_name("ledger.db-wal").stat().st_size + 300_000
            assert server.process
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
            asks = [request(one, "x" * 3000, request_id=f"request-{one}") for one in workflows]
            ended: list[Ended] = []
            while not ended or ended[-1].code.name == "OK":
                ended.append(await read(steps.RunStep(asks[len(ended)])))
        assert ended[-1].verdict == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
        assert re.search(r"cannot be read or written; check the disk|does not fit on the disk", ended[-1].message)
        server.kill()
        server.start()
        done = server.sql("select count(*) as n from steps where state = 'finished'")
        assert done[0]["n"] >= len(ended) - 1
        check_books(server.sql)
        async with stub(server.target) as steps:
            assert (await read(steps.RunStep(asks[len(ended) - 1]))).code.name == "OK"
