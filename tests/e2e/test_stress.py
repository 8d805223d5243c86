"""Many steps at once, with random cancels, faults, kills and locks: afterwards everything is idle and adds up."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from tests.e2e.calls import Ended, read, request, stub
from tests.e2e.conftest import Emulator, Paceline
from tests.e2e.servers import PATIENCE, check_books

from paceline.v1.step_service_pb2 import CancelStepRequest, OnBusy
from paceline_agents import types as t

pytestmark = pytest.mark.slow

FLAGS = ("--step-seconds=0.004", "--prefill-fixed-seconds=0.004", "--reply-tokens=200")
WORKFLOWS = 8
CALLERS = 12
STEPS = 12
"""Steps of each caller."""
CODES = {
    "OK",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "ABORTED",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
}
"""What may come of a step here; above all no INTERNAL and no UNKNOWN."""


class Chaos:
    """One seeded run."""

    def __init__(self, paceline: Paceline, steps: Any, engines: list[Emulator], seed: int) -> None:
        self.paceline = paceline
        self.steps = steps
        self.engines = engines
        self.rng = random.Random(seed)
        self.workflows: list[str] = []
        self.ends: Counter[str] = Counter()
        self.over = False

    async def play(self) -> None:
        """Callers and troublemakers side by side."""
        for _ in range(WORKFLOWS):
            self.workflows.append((await self.paceline.client.create_workflow()).workflow_id)
        trouble = [asyncio.create_task(make()) for make in (self._faults, self._kills, self._locks)]
        callers = [asyncio.create_task(self._caller(f"caller-{number}")) for number in range(CALLERS)]
        try:
            await asyncio.gather(*callers)
        finally:
            self.over = True
            await asyncio.gather(*trouble)

    async def _caller(self, name: str) -> None:
        for number in range(STEPS):
            ended = await self._one(f"{name}-{number}")
            self.ends[f"{ended.code.name} {ended.reason}"] += 1
            assert ended.code.name in CODES, ended

    async def _one(self, request_id: str) -> Ended:
        rng = self.rng
        ask = request(
            rng.choice(self.workflows),
            f"question {request_id}",
            request_id=request_id,
            tokens=rng.randrange(1, 60),
            on_busy=rng.choice([OnBusy.ON_BUSY_WAIT] * 4 + [OnBusy.ON_BUSY_FAIL, OnBusy.ON_BUSY_FORK]),
        )
        after = rng.random() * 0.6
        match rng.choice(["plain", "plain", "leave", "cancel", "deadline", "twice", "return"]):
            case "leave":
                call = self.steps.RunStep(ask)
                asyncio.get_running_loop().call_later(after, call.cancel)
                return await _survive(call)
            case "cancel":
                ended, _ = await asyncio.gather(read(self.steps.RunStep(ask)), self._cancel(request_id, after))
                return ended
            case "deadline":
                return await read(self.steps.RunStep(ask, timeout=after + 0.01))
            case "twice":
                both = await asyncio.gather(read(self.steps.RunStep(ask)), read(self.steps.RunStep(ask)))
                return both[rng.randrange(2)]
            case "return":
                call = self.steps.RunStep(ask)
                asyncio.get_running_loop().call_later(after / 4, call.cancel)
                await _survive(call)
                return await read(self.steps.RunStep(ask))
        return await read(self.steps.RunStep(ask))

    async def _cancel(self, request_id: str, after: float) -> None:
        await asyncio.sleep(after)
        with suppress(grpc.aio.AioRpcError):
            await self.steps.CancelStep(CancelStepRequest(request_id=request_id))

    async def _faults(self) -> None:
        kinds: list[dict[str, Any]] = [
            {"kind": "drop"},
            {"kind": "abort"},
            {"kind": "error"},
            {"kind": "stall"},
            {"kind": "refuse", "status": 400},
            {"kind": "refuse", "status": 503},
        ]
        while not self.over:
            await asyncio.sleep(self.rng.random() * 0.3)
            fault = {**self.rng.choice(kinds), "after_tokens": self.rng.randrange(20)}
            with suppress(Exception):  # the engine is gone just now
                await self.rng.choice(self.engines).fault(**fault)

    async def _kills(self) -> None:
        while not self.over:
            await asyncio.sleep(0.5 + self.rng.random())
            at = self.rng.randrange(len(self.engines))
            port = self.engines[at].url.rpartition(":")[2]
            self.engines[at].kill()
            await asyncio.sleep(self.rng.random())
            self.engines[at] = await asyncio.to_thread(Emulator, *FLAGS, f"--port={port}")

    async def _locks(self) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.random() * 1.5)
            other = sqlite3.connect(self.paceline.ledger, isolation_level=None, timeout=0.05)
            with closing(other), suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
                await asyncio.sleep(self.rng.random() * 2)
                other.execute("ROLLBACK")


async def _survive(call: Any) -> Ended:
    try:
        return await read(call)
    except asyncio.CancelledError:
        return Ended(grpc.StatusCode.CANCELLED)


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_nothing_is_left_and_the_books_are_right(
    emulator: Callable[..., Emulator], run: Callable[..., Any], ledger: Path, seed: int
) -> None:
    engines = [emulator(*FLAGS) for _ in range(2)]
    limits = {"stall_seconds": 0.5, "max_queued_steps": 6}
    places = {
        f"e{at}": {"model": "m", "url": one.url, "max_concurrent_steps": 2} for at, one in enumerate(engines)
    }
    # A write that waits for longer than the locks last is refused now and then.
    quick = {"ledger": {"url": f"sqlite:///{ledger}", "write_timeout_seconds": 1.0}}
    async with run(engines=places, limits=limits, **quick) as paceline, stub(paceline.target) as steps:
        chaos = Chaos(paceline, steps, engines, seed)
        try:
            await asyncio.wait_for(chaos.play(), 90)
            await _idle(paceline)
            await _check(chaos)
        finally:
            for one in chaos.engines:
                one.kill()
    assert chaos.ends["OK "] > CALLERS * STEPS // 5, chaos.ends
    assert len(chaos.ends) > 4, chaos.ends


async def _idle(paceline: Paceline) -> None:
    """Closes that were kept have been written, and every step has noticed that it is over."""
    async with asyncio.timeout(PATIENCE):
        while any(_gauges(paceline).values()) or paceline.runtime.replicas.queued():
            await asyncio.sleep(0.05)
    assert [one.load.running for one in paceline.runtime.replicas.all()] == [0, 0]


def _gauges(paceline: Paceline) -> dict[str, float]:
    names = ("paceline_steps_running", "paceline_steps_queued", "paceline_ledger_writes_kept")
    with urlopen(f"http://127.0.0.1:{paceline.runtime.metrics_port}/metrics", timeout=10) as page:
        lines = [line.split() for line in page.read().decode().splitlines()]
    return {line[0]: float(line[1]) for line in lines if line[0] in names}


async def _check(chaos: Chaos) -> None:
    paceline = chaos.paceline
    check_books(paceline.sql)
    assert (
        paceline.sql("select step_id from attempts where state = 'finished' group by step_id having count(*) > 1")
        == []
    )
    apart = paceline.sql(
        "select s.step_id from steps s left join attempts a on a.attempt_id = s.last_attempt_id "
        "where (s.state = 'finished') <> (coalesce(a.state, '') = 'finished')"
    )
    assert apart == []
    heads = paceline.sql("select h.state from workflows w join steps h on h.step_id = w.head_step_id")
    assert {row["state"] for row in heads} <= {"finished"}
    broken = paceline.sql(
        "select s.step_id from steps s join steps p on p.step_id = s.parent_step_id where s.state = 'finished' "
        "and s.reuse_carried_tokens <> p.reuse_prompt_tokens + length(p.generated_ids) / 4"
    )
    assert broken == []
    for engine in chaos.engines:
        await engine.no_faults()
    for workflow_id in chaos.workflows:
        await paceline.client.step(workflow_id, "and now?", max_output_tokens=3, on_busy=t.OnBusy.FAIL)
