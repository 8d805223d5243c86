"""Leases of runtimes, and what dead ones leave behind."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    and_,
    exists,
    func,
    insert,
    not_,
    select,
    update,
)

from paceline.errors import RuntimeLost
from paceline.ledger.attempts import Dispatched, settle
from paceline.ledger.rows import MILLION
from paceline.ledger.tables import attempts, runtimes, steps
from paceline.ledger.writer import Operation
from paceline.workflow.model import StepState, Usage

_MESSAGE = "the runtime that ran the step died; repeat the request"
_ENDED_AT = func.coalesce(attempts.c.checkpointed_at, attempts.c.dispatched_at)


def register(runtime_id: str, host: str, pid: int, lease_seconds: float) -> Operation[None]:
    """Insert a runtime, or renew one that an earlier run inserted."""

    def run(connection: Connection) -> None:
        moment = _clock(connection)
        if _extend(connection, runtime_id, moment, lease_seconds) == 0:
            row = {"runtime_id": runtime_id, "host": host, "pid": pid, "started_at": moment}
            connection.execute(insert(runtimes), {**row, "lease_until": moment + _microseconds(lease_seconds)})

    return Operation(run)


def renew(runtime_id: str, lease_seconds: float) -> Operation[None]:
    """Extend a lease."""

    def run(connection: Connection) -> None:
        _extend(connection, runtime_id, _clock(connection), lease_seconds)

    return Operation(run)


def _extend(connection: Connection, runtime_id: str, moment: int, lease_seconds: float) -> int:
    until = moment + _microseconds(lease_seconds)
    return connection.execute(
        update(runtimes).where(runtimes.c.runtime_id == runtime_id).values(lease_until=until)
    ).rowcount


def close_orphans(runtime_id: str, *, alone: bool) -> Operation[int]:
    """Close what dead runtimes left; `alone` says that every other runtime is dead."""

    def run(connection: Connection) -> int:
        moment = _clock(connection)
        dead = partial(_dead, runtime_id=runtime_id, alone=alone, moment=moment)
        ended = connection.execute(
            update(attempts)
            .where(attempts.c.state == StepState.RUNNING.value, dead(attempts.c.runtime_id))
            .values(state=StepState.FAILED.value, error_reason=RuntimeLost.reason, ended_at=_ENDED_AT)
            .returning(attempts)
        ).all()
        for row in ended:
            _close_step(connection, row)
        waiting = connection.execute(
            update(steps)
            .where(steps.c.state == StepState.QUEUED.value, dead(steps.c.runtime_id))
            .values(**_lost(moment))
        )
        return len(ended) + waiting.rowcount

    return Operation(run)


def _close_step(connection: Connection, attempt: Row[Any]) -> None:
    connection.execute(
        update(steps)
        .where(steps.c.step_id == attempt.step_id, steps.c.last_attempt_id == attempt.attempt_id)
        .values(**_lost(attempt.ended_at))
    )
    # An attempt was dispatched, so its prompt counts although nothing was heard of it.
    usage = Usage(attempt.uncached_prompt_tokens or 0, attempt.cached_prompt_tokens, None, attempt.output_tokens)
    dispatched = Dispatched(
        attempt.tenant,
        attempt.workflow_id,
        attempt.prompt_tokens,
        attempt.reserved_list_nanos,
        attempt.reserved_tokens,
    )
    settle(connection, dispatched, attempt.list_nanos, dispatched.spent_tokens(usage), head=None)


def _lost(moment: int) -> dict[str, Any]:
    return {
        "state": StepState.FAILED.value,
        "error_reason": RuntimeLost.reason,
        "error_message": _MESSAGE,
        "ended_at": moment,
    }


def _dead(owner: Column[str], *, runtime_id: str, alone: bool, moment: int) -> ColumnElement[bool]:
    if alone:
        return owner != runtime_id
    alive = exists().where(runtimes.c.runtime_id == owner, runtimes.c.lease_until >= moment)
    return and_(owner != runtime_id, not_(alive))


def _clock(connection: Connection) -> int:
    """UTC microseconds; by the database's clock where several machines share it."""
    if connection.dialect.name == "postgresql":
        seconds = connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one()
        return int(seconds * MILLION)
    return time.time_ns() // 1000


def _microseconds(seconds: float) -> int:
    return round(seconds * MILLION)
