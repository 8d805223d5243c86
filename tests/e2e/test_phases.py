"""Cancels and deadlines in each phase of a step: a clear status, the ledger right, nothing left running."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.e2e.calls import Ended, read, request, stub
from tests.e2e.conftest import Emulator, Paceline
from tests.e2e.servers import FAST, check_idle, free_port

from paceline.v1.step_pb2 import StepState
from paceline.v1.step_service_pb2 import (
    CancelStepRequest,
    RunStepResponse,
    StepPhase,
)

pytestmark = pytest.mark.slow

MakeEmulator = Callable[..., Emulator]
Run = Callable[..., Any]
SLOW_PREFILL = (*FAST[1:], "--prefill-token-seconds=0.01", "--max-num-batched-tokens=64")
SLOW = ("--step-seconds=0.02", "--prefill-fixed-seconds=0", "--reply-tokens=600")


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
