"""Runtimes: one per SQLite file, and what dead ones leave is closed once, with what was known."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.ledger.rows import COST, TENANT, attempt, finished, step, workflow
from tests.ledger.test_store import balance

from paceline.errors import LedgerInUse, RuntimeLost
from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Budget, Cost, Speculation, Step, StepState, Usage, UsageSource
from paceline.workflow.ports import AttemptCheckpoint

HOLD = """
import asyncio, sys
from paceline.ledger.store import SqlLedger
async def main():
    await SqlLedger.open(sys.argv[1], write_timeout=5, holder="rt-child")
    print("open", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


async def test_a_second_runtime_on_one_file_is_refused_by_name(sqlite_url: str) -> None:
    child = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
        [sys.executable, "-c", HOLD, sqlite_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin
    assert child.stdout
    assert child.stdout.readline() == "open\n"
    name = re.escape(f"used by rt-child (process {child.pid} on {socket.gethostname()})")
    with pytest.raises(LedgerInUse, match=name):
        await SqlLedger.open(sqlite_url, write_timeout=5, holder="rt-test")
    report = await SqlLedger.open(sqlite_url, write_timeout=5)  # looking is allowed
    assert await report.counts() == {"workflows": 0, "steps": 0, "attempts": 0}
    await report.close()

    child.kill()
    child.communicate()
    ledger = await SqlLedger.open(sqlite_url, write_timeout=5, holder="rt-test")
    await ledger.close()
    again = await SqlLedger.open(sqlite_url, write_timeout=5, holder="rt-other")
    await again.close()


async def leave_behind(url: str, lease_seconds: float) -> list[Step]:
    """A runtime that goes away with one attempt checkpointed, one just dispatched, and one step waiting."""
    ledger = await SqlLedger.open(url, write_timeout=10, holder="rt-test")
    await ledger.register_runtime("rt-test", socket.gethostname(), os.getpid(), lease_seconds)
    await ledger.create_workflow(workflow(budget=Budget(list_nanos=1_000_000)), "hash")
    known, silent, waiting = steps = [step(f"st-0000{number}") for number in range(3)]
    await ledger.open_step(known, attempt(known, cost=Cost(10_000, None, "model-a", example_price=True)))
    await ledger.open_step(silent, attempt(silent, cost=Cost(10_000, None, "model-a", example_price=True)))
    await ledger.open_step(waiting, None)
    usage = Usage(1000, None, output=30, prompt_source=UsageSource.PREDICTED, output_source=UsageSource.STREAM)
    cost = Cost(12_345, 500, "model-a", example_price=True)
    await ledger.checkpoint([AttemptCheckpoint("at-st-00000-1", usage, Speculation("ngram", 8, 4, 1.5), cost)])
    await ledger.close()
    return steps


async def test_orphans_are_closed_once_with_what_was_known(url: str) -> None:
    await leave_behind(url, lease_seconds=0)
    ledger = await SqlLedger.open(url, write_timeout=10, holder="rt-next")
    await ledger.register_runtime("rt-next", "host", 1, 15)
    assert await ledger.close_orphans("rt-next") == 3
    assert await ledger.close_orphans("rt-next") == 0

    known, silent, waiting = [await ledger.get_step(TENANT, f"st-0000{number}") for number in range(3)]
    for lost in (known, silent, waiting):
        assert (lost.state, lost.error_reason) == (StepState.FAILED, "RUNTIME_LOST")
        assert lost.ended_at is not None
    assert (known.usage.uncached_prompt, known.usage.cached_prompt, known.usage.output) == (1000, None, 30)
    assert known.usage.prompt_source is known.usage.output_source is UsageSource.CHECKPOINT
    assert known.cost == Cost(12_345, 500, "model-a", example_price=True)
    assert (silent.usage, silent.cost.list_nanos) == (Usage(), 10_000)
    assert await balance(ledger) == (22_345, 2_030, 3, 0, 0)
    assert await ledger.requeue_step(replace(known, runtime_id="rt-next"))
    await ledger.close()


async def test_an_end_that_comes_after_its_orphan_was_closed_is_refused(url: str) -> None:
    await leave_behind(url, lease_seconds=0)
    ledger = await SqlLedger.open(url, write_timeout=10, holder="rt-next")
    await ledger.register_runtime("rt-next", "host", 1, 15)
    await ledger.close_orphans("rt-next")
    with pytest.raises(RuntimeLost, match="closed as failed by another runtime"):
        await ledger.close_attempt(finished(attempt(step("st-00000"))))
    assert (await ledger.get_workflow(TENANT, "wf-00001")).head_step_id is None
    await ledger.close()


@pytest.mark.postgres
async def test_a_runtime_with_a_lease_keeps_its_attempts(request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres").migrated()
    await leave_behind(url, lease_seconds=3600)
    ledger = await SqlLedger.open(url, write_timeout=10)
    await ledger.register_runtime("rt-next", "host", 1, 15)
    assert await ledger.close_orphans("rt-next") == 0
    await ledger.close_attempt(finished(attempt(step("st-00000"))))
    assert (await ledger.get_step(TENANT, "st-00000")).cost == COST
    await ledger.renew_lease("rt-test", 0)
    assert await ledger.close_orphans("rt-next") == 2
    await ledger.close()


async def test_a_runtime_never_closes_its_own(url: str) -> None:
    await leave_behind(url, lease_seconds=0)
    ledger = await SqlLedger.open(url, write_timeout=10, holder="rt-test")
    assert await ledger.close_orphans("rt-test") == 0
    await ledger.close()
