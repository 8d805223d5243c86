"""A process that works on a ledger until it is killed.

Reads `URL ROUND` lines; for each it forks a worker, prints its pid, and prints `dead` once it is gone. A worker
prints `open STEP` and `closed STEP` after the ledger has confirmed each.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.ledger.rows import attempt, finished, step, workflow

from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Cost, Speculation, Usage
from paceline.workflow.ports import AttemptCheckpoint


def say(*words: object) -> None:
    """Print a line at once, whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def work(url: str, round_: str) -> None:
    """Run steps of eight workflows for ever."""
    runtime_id = f"rt-{round_}"
    ledger = await SqlLedger.open(url, write_timeout=30, holder=runtime_id)
    await ledger.register_runtime(runtime_id, "host", os.getpid(), 0)
    await asyncio.gather(*(_steps(ledger, runtime_id, f"{round_}-{lane}") for lane in range(8)))


async def _steps(ledger: SqlLedger, runtime_id: str, name: str) -> None:
    workflow_id = f"wf-{name:0>5}"
    await ledger.create_workflow(workflow(workflow_id), "hash")
    number = 0
    while True:
        number += 1
        new = step(f"st-{name}-{number}", workflow_id=workflow_id)
        first = attempt(new, runtime_id=runtime_id, cost=Cost(7))
        await ledger.open_step(new, first)
        say("open", new.step_id)
        await ledger.checkpoint([AttemptCheckpoint(first.attempt_id, Usage(output=1), Speculation(), Cost(8))])
        await ledger.close_attempt(finished(first))
        say("closed", new.step_id)


def main() -> None:
    """Fork one worker for each line."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(work(*line.split()))
            os._exit(1)
        say("pid", pid)
        os.waitpid(pid, 0)
        say("dead")


if __name__ == "__main__":
    main()
