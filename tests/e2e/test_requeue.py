"""A step that runs again although the ledger was late or refused its end: it always ends, and can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.calls import read, request, stub
from tests.e2e.conftest import Emulator
from tests.e2e.servers import FAST, check_idle

from paceline.errors import InvalidArgument, LedgerUnavailable
from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Step
from paceline_agents import types as t

MakeEmulator = Callable[..., Emulator]
Run = Callable[..., Any]


async def test_a_takeover_that_was_committed_too_late_is_closed_again(
    emulator: MakeEmulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = emulator(*FAST)
    real = SqlLedger.requeue_step
    late: list[str] = []

    async def requeue_late(self: SqlLedger, step: Step) -> bool:
        taken = await real(self, step)
        if not late:
            late.append(step.step_id)
            raise LedgerUnavailable
        return taken

    monkeypatch.setattr(SqlLedger, "requeue_step", requeue_late)
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ask = request(workflow.workflow_id, request_id="request-one")
        await engine.fault(kind="refuse", status=503)
        assert (await read(steps.RunStep(ask))).verdict == ("UNAVAILABLE", "ENGINE_UNAVAILABLE")
        assert (await read(steps.RunStep(ask))).verdict == ("UNAVAILABLE", "LEDGER_UNAVAILABLE")
        assert (await read(steps.RunStep(ask, timeout=10))).code.name == "OK"
        assert [row["state"] for row in paceline.sql("select state from attempts order by number")] == [
            "failed",
            "finished",
        ]
        check_idle(paceline)


async def test_an_end_that_the_database_cannot_store_is_stored_as_a_failure(
    emulator: MakeEmulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = emulator(*FAST)
    real = SqlLedger.close_attempt
    refused: list[str] = []

    async def refuse_the_answer(self: SqlLedger, end: Any) -> None:
        if not refused:
            refused.append(end.step_id)
            raise InvalidArgument("the database cannot store a value")
        await real(self, end)

    monkeypatch.setattr(SqlLedger, "close_attempt", refuse_the_answer)
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow()
        ask = request(workflow.workflow_id, request_id="request-one")
        assert (await read(steps.RunStep(ask))).verdict == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
        assert (await read(steps.RunStep(ask, timeout=10))).verdict == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
        assert paceline.sql("select state, output_tokens > 0 as billed from attempts") == [
            {"state": "failed", "billed": 1}
        ]
        check_idle(paceline)


async def test_a_step_that_runs_again_is_stored_as_it_is_sent(emulator: MakeEmulator, run: Run) -> None:
    engine = emulator(*FAST)
    system, rules = t.Message(t.Role.SYSTEM, "Be brief.\nnow: 1"), {"clock": {"pattern": "now: .*"}}
    one, two = t.Message(t.Role.USER, "one"), t.Message(t.Role.USER, "two")
    async with run(engine.url) as paceline, stub(paceline.target) as steps:
        workflow = await paceline.client.create_workflow(system=system.content)
        ask = request(workflow.workflow_id, "one", request_id="request-one")
        await engine.fault(kind="refuse", status=503)
        assert (await read(steps.RunStep(ask))).verdict == ("UNAVAILABLE", "ENGINE_UNAVAILABLE")
    async with run(engine.url, volatile=rules) as paceline, stub(paceline.target) as steps:
        assert (await read(steps.RunStep(ask, timeout=10))).code.name == "OK"
        said = (await paceline.client.get_step(request_id="request-one")).answer.text
    async with run(engine.url, volatile=rules) as paceline:
        workflow = await paceline.client.get_workflow(workflow.workflow_id)
        answer = t.Message(t.Role.ASSISTANT, said)
        after = await workflow.step([system, one, answer, two], whole_conversation=True)
    assert after.reuse.break_reason == ""
