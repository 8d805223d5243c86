"""The database does not take writes: steps are refused before their dispatch, and no end is lost."""

from __future__ import annotations

import asyncio
import re
import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.calls import Ended, read, request, stub
from tests.e2e.conftest import Emulator
from tests.e2e.servers import FAST, check_books, check_idle, installed

from paceline.errors import LedgerUnavailable
from paceline.ledger.store import SqlLedger
from paceline.v1.step_service_pb2 import (
    RunStepResponse,
)
from paceline_agents.aio import AsyncClient

pytestmark = pytest.mark.slow

MakeEmulator = Callable[..., Emulator]
Run = Callable[..., Any]


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
