"""One database: the writer, the readers and, for a runtime on SQLite, the lock of the file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DataError, DBAPIError

from paceline.ledger import schema
from paceline.ledger.engine import READ_THREADS, parse_url, read_engine, sqlite_path, writer_engine
from paceline.ledger.failures import not_storable, translate, unavailable
from paceline.ledger.lock import FileLock
from paceline.ledger.writer import Operation, Writer

T = TypeVar("T")


class Database:
    """Access to one ledger database from one event loop."""

    def __init__(self, url: URL, timeout: float, lock: FileLock | None) -> None:
        path = sqlite_path(url)
        self.name = schema.describe(url)
        self.alone = lock is not None
        """Whether no other runtime can use this database now."""
        self._lock = lock
        self._timeout = timeout
        self._write_engine = writer_engine(url, timeout)
        self._read_engine = read_engine(url, timeout)
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="ledger-reader")
        probe = _file_probe(path, self.name) if path else _no_probe
        self._writer = Writer(self._write_engine, self.name, timeout, probe)

    @classmethod
    async def open(cls, url: str, *, timeout: float, holder: str = "") -> Database:
        """Open a database whose schema fits; with a `holder`, a SQLite file is locked in its name.

        Raises `ConfigError`, `LedgerInUse`, `SchemaOutdated` or `LedgerUnavailable`.
        """
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        if path and not path.exists():
            raise unavailable(str(path), "does not exist", "run `paceline db upgrade`, or check ledger.url")
        lock = FileLock(path, holder) if path and holder else None
        database = cls(parsed, timeout, lock)
        try:
            await database.read(schema.check)
        except BaseException:
            await database.close()
            raise
        return database

    async def write(self, operation: Operation[T]) -> T:
        """Run a write; see `Writer`."""
        return await self._writer.write(operation)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on one snapshot in a reader thread. Raises `LedgerUnavailable`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                return await loop.run_in_executor(self._readers, self._query, query)
        except TimeoutError:
            raise unavailable(self.name, "does not answer", "check its load, disk and network") from None

    def _query(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._read_engine.connect() as connection:
                return query(connection)
        except DataError as error:
            raise not_storable(error) from error
        except DBAPIError as error:
            raise translate(error, self.name).error from error

    async def close(self) -> None:
        """Commit what waits, then close everything."""
        await self._writer.close()
        await asyncio.to_thread(self._readers.shutdown)
        self._write_engine.dispose()
        self._read_engine.dispose()
        if self._lock:
            self._lock.release()


def _file_probe(path: Path, name: str) -> Callable[[], None]:
    """A check that the file that was opened is still the one at its path: SQLite would go on writing into a
    deleted file without a word."""
    opened = _identity(path)

    def probe() -> None:
        if _identity(path) != opened:
            raise unavailable(name, "was deleted or replaced", "put the file back, or restart with a new one")

    return probe


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _no_probe() -> None:
    return None
