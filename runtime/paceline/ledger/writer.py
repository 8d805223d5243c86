"""The one thread that writes. It takes all waiting operations, commits them together and answers their callers."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from paceline.errors import LedgerUnavailable
from paceline.ledger.failures import not_storable, translate, unavailable

T = TypeVar("T")
MAX_BATCH = 256
RETRY_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """One write. Both parts run in the writer's transaction and may run again after a rollback.

    `explain` is called when `run` violated a constraint, after `run` was undone: it returns the result if an
    earlier run was committed after all (the connection broke before the answer), else raises the domain error.
    """

    run: Callable[[Connection], T]
    explain: Callable[[Connection], T] | None = None


@dataclass(slots=True)
class _Pending:
    operation: Operation[Any]
    future: asyncio.Future[Any]
    deadline: float
    abandoned: bool = False


@dataclass(slots=True)
class _Answer:
    pending: _Pending
    value: Any = None
    error: BaseException | None = field(default=None)


class Writer:
    """Runs operations in the order of the calls, many per transaction.

    An operation that fails does so alone. While the database does not take writes, each caller gets
    `LedgerUnavailable` after at most `timeout` seconds, and nothing of its operation is kept. A caller that stops
    waiting does not take its operation back.
    """

    def __init__(self, engine: Engine, database: str, timeout: float, probe: Callable[[], None]) -> None:
        """`probe` raises `LedgerUnavailable` when the open connection no longer leads to the database."""
        self._engine = engine
        self._database = database
        self._timeout = timeout
        self._probe = probe
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._closing = False
        self._failing: LedgerUnavailable | None = None
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    async def write(self, operation: Operation[T]) -> T:
        """Run an operation; it is committed when this returns."""
        if self._closing:
            raise unavailable(self._database, "is closed", "start the runtime again")
        future: asyncio.Future[T] = self._loop.create_future()
        # The writer gives up a little earlier than the caller, so that its answer is the one that counts.
        pending = _Pending(operation, future, time.monotonic() + 0.9 * self._timeout)
        self._queue.put(pending)
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(future)
        except TimeoutError:
            pending.abandoned = True
            raise self._late() from None

    async def close(self) -> None:
        """Commit what waits, then end the thread."""
        self._closing = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        waiting: list[_Pending] = []
        open_ = True
        while open_ or waiting:
            open_ = self._take(waiting, block=open_ and not waiting) and open_
            expired, batch = self._split(waiting)
            answers, waiting = self._attempt(batch)
            self._deliver(expired + answers)
        self._disconnect()

    def _take(self, waiting: list[_Pending], *, block: bool) -> bool:
        """Move queued operations to `waiting`; False once the writer is told to stop."""
        while len(waiting) < MAX_BATCH:
            try:
                item = self._queue.get(block=block)
            except queue.Empty:
                return True
            if item is None:
                return False
            waiting.append(item)
            block = False
        return True

    def _split(self, waiting: list[_Pending]) -> tuple[list[_Answer], list[_Pending]]:
        now = time.monotonic()
        live = [pending for pending in waiting if not pending.abandoned]
        late = [pending for pending in live if pending.deadline <= now]
        expired = [_Answer(pending, error=self._late()) for pending in late]
        return expired, [pending for pending in live if pending.deadline > now]

    def _attempt(self, batch: list[_Pending]) -> tuple[list[_Answer], list[_Pending]]:
        """Run a batch; returns the answers and what to try again."""
        if not batch:
            return [], []
        try:
            self._probe()
            answers = self._commit(batch)
            self._failing = None
            return answers, []
        except LedgerUnavailable as error:
            self._disconnect()
            return [_Answer(pending, error=_copy(error)) for pending in batch], []
        except DBAPIError as error:
            failure = translate(error, self._database)
            self._disconnect()
            if not failure.passing:
                return [_Answer(pending, error=_copy(failure.error)) for pending in batch], []
            self._failing = failure.error
            time.sleep(RETRY_SECONDS)
            return [], batch
        except Exception as error:  # noqa: BLE001 - the callers get it; the writer has to live on
            self._disconnect()
            return [_Answer(pending, error=error) for pending in batch], []

    def _late(self) -> LedgerUnavailable:
        """The error of a write that waited too long: what keeps the writer from working, if it knows."""
        return _copy(self._failing or unavailable(self._database, "hangs", "check its load, disk and network"))

    def _commit(self, batch: list[_Pending]) -> list[_Answer]:
        """All in one transaction; when one fails, again with a savepoint around each."""
        connection = self._connect()
        try:
            return _transaction(connection, batch, _run_together)
        except Exception as error:
            if _database_failed(error):
                raise
        return _transaction(connection, batch, _run_alone)

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _deliver(self, answers: list[_Answer]) -> None:
        if not answers:
            return
        try:
            self._loop.call_soon_threadsafe(_complete, answers)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


def _transaction(
    connection: Connection, batch: list[_Pending], run: Callable[[Connection, _Pending], _Answer]
) -> list[_Answer]:
    """Run and commit those whose callers still wait: one of them may hang so long that others give up."""
    while True:
        with connection.begin() as transaction:
            answers = [run(connection, pending) for pending in batch if not pending.abandoned]
            given_up = any(answer.pending.abandoned for answer in answers)
            if given_up:
                transaction.rollback()
        if not given_up:
            return answers


def _run_together(connection: Connection, pending: _Pending) -> _Answer:
    return _Answer(pending, pending.operation.run(connection))


def _run_alone(connection: Connection, pending: _Pending) -> _Answer:
    operation = pending.operation
    try:
        try:
            with connection.begin_nested():
                return _Answer(pending, operation.run(connection))
        except IntegrityError:
            if operation.explain is None:
                raise
            return _Answer(pending, operation.explain(connection))
    except DataError as error:
        return _Answer(pending, error=not_storable(error))
    except Exception as error:
        if _database_failed(error):
            raise
        return _Answer(pending, error=error)


def _database_failed(error: Exception) -> bool:
    """Whether the database failed, rather than one operation."""
    return isinstance(error, DBAPIError) and not isinstance(error, IntegrityError | DataError)


def _complete(answers: list[_Answer]) -> None:
    for answer in answers:
        future = answer.pending.future
        if future.done():
            continue
        if answer.error is None:
            future.set_result(answer.value)
        else:
            future.set_exception(answer.error)
            future.exception()  # marks it as seen: its caller may have left


def _copy(error: LedgerUnavailable) -> LedgerUnavailable:
    """A traceback belongs to one caller, so each gets an error of its own."""
    return LedgerUnavailable(error.message, **error.metadata)
