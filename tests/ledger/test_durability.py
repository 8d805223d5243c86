"""A runtime is killed at random moments: what was confirmed is there, whole, and the rest is closed once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import Connection, func, select

from paceline.ledger.store import SqlLedger
from paceline.ledger.tables import attempts, steps, workflows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROUNDS = 20


@dataclass
class Killed:
    """What a killed worker had confirmed."""

    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)


@pytest.fixture
def workers() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    yield process
    process.communicate()


def run_and_kill(workers: subprocess.Popen[str], url: str, round_: int, after: int) -> Killed:
    """Let a worker run, kill it once it has confirmed `after` writes, and read what else it had confirmed."""
    assert workers.stdin
    assert workers.stdout
    workers.stdin.write(f"{url} {round_}\n")
    workers.stdin.flush()
    killed = Killed()
    pid, count = 0, 0
    for word, rest in _lines(workers.stdout):
        if word == "pid":
            pid = int(rest)
        elif word == "dead":
            break
        else:
            (killed.opened if word == "open" else killed.closed).add(rest)
            count += 1
        if pid and count >= after:
            os.kill(pid, signal.SIGKILL)
            after = sys.maxsize
    return killed


def _lines(stream: IO[str]) -> Iterator[tuple[str, str]]:
    for line in stream:
        word, _, rest = line.rstrip("\n").partition(" ")
        yield word, rest


async def check(url: str, round_: int, killed: Killed) -> None:
    runtime_id = f"rt-check-{round_}"
    ledger = await SqlLedger.open(url, write_timeout=30, holder=runtime_id)
    await ledger.register_runtime(runtime_id, "host", 1, 3600)
    before = await ledger.database.read(_states)
    orphans = await ledger.close_orphans(runtime_id)
    assert await ledger.close_orphans(runtime_id) == 0
    states = await ledger.database.read(_states)
    assert orphans == sum(state == "running" for state in before.values())
    assert killed.opened <= states.keys()
    assert {states[step_id] for step_id in killed.closed} <= {"finished"}
    assert set(states.values()) <= {"finished", "failed"}
    assert await ledger.database.read(_books_differ) == []
    assert await ledger.database.read(_half_written) == 0
    await ledger.close()


def _states(connection: Connection) -> dict[str, str]:
    return {row.step_id: row.state for row in connection.execute(select(steps.c.step_id, steps.c.state))}


def _books_differ(connection: Connection) -> list[str]:
    """Workflows whose counters are not the sums of their attempts, or that still reserve something."""
    a, w = attempts.c, workflows.c
    of_attempts = (
        select(a.tenant, a.workflow_id, func.sum(a.list_nanos).label("nanos"), func.count().label("number"))
        .group_by(a.tenant, a.workflow_id)
        .subquery()
    )
    joined = workflows.outerjoin(of_attempts, w.workflow_id == of_attempts.c.workflow_id)
    wrong = (
        (w.spent_list_nanos != func.coalesce(of_attempts.c.nanos, 0))
        | (w.spent_steps != func.coalesce(of_attempts.c.number, 0))
        | (w.reserved_list_nanos != 0)
        | (w.reserved_tokens != 0)
    )
    return list(connection.execute(select(w.workflow_id).select_from(joined).where(wrong)).scalars())


def _half_written(connection: Connection) -> int:
    """Steps without their attempt, in another state than it, or finished without what was generated."""
    same = attempts.c.attempt_id == steps.c.last_attempt_id
    joined = steps.outerjoin(attempts, same)
    wrong = (
        attempts.c.state.is_(None)
        | (attempts.c.state != steps.c.state)
        | ((steps.c.state == "finished") & (steps.c.generated_ids.is_(None) | attempts.c.output_tokens.is_(None)))
    )
    return connection.execute(select(func.count()).select_from(joined).where(wrong)).scalar_one()


@pytest.mark.timeout(300)
async def test_nothing_confirmed_is_lost(url: str, workers: subprocess.Popen[str]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    moments = random.Random(seed)
    for round_ in range(ROUNDS):
        killed = run_and_kill(workers, url, round_, moments.randint(1, 300))
        assert killed.opened
        await check(url, round_, killed)
