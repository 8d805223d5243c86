"""SQLAlchemy engines for a ledger URL: one for the writer thread, one for reads."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from paceline.errors import ConfigError

REMEDY = "use sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME"
READ_THREADS = 4


def parse_url(url: str) -> URL:
    """Parse and check `ledger.url`. Raises `ConfigError` for anything but a SQLite file or PostgreSQL."""
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError):
        raise ConfigError(f"ledger.url: cannot read it; {REMEDY}", field="ledger.url") from None
    if (dialect.name, dialect.driver) == ("postgresql", "psycopg"):
        return parsed
    if dialect.name != "sqlite" or dialect.driver != "pysqlite":
        raise ConfigError(f"ledger.url: {parsed.drivername} is not supported; {REMEDY}", field="ledger.url")
    if parsed.database in {None, "", ":memory:"}:
        raise ConfigError(f"ledger.url: SQLite needs a file; {REMEDY}", field="ledger.url")
    if parsed.query:
        raise ConfigError("ledger.url: a SQLite URL takes no options; remove them", field="ledger.url")
    return parsed


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for PostgreSQL."""
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def writer_engine(url: URL, write_timeout: float) -> Engine:
    """An engine for one long-lived connection whose transactions take the write lock when they begin."""
    if path := sqlite_path(url):
        # Short waits, so that the writer comes back to answer those whose time is up.
        return _sqlite(path, busy_seconds=min(0.2, write_timeout / 20), begin="BEGIN IMMEDIATE", pool_size=1)
    # Less than the whole, so that the server's own word on what is wrong comes in time.
    return _postgres(url, 0.4 * write_timeout, pool_size=1)


def read_engine(url: URL, timeout: float) -> Engine:
    """An engine whose connections cannot write and whose transactions see one snapshot."""
    if path := sqlite_path(url):
        engine = _sqlite(path, busy_seconds=timeout, begin="BEGIN", pool_size=READ_THREADS)
        event.listen(engine, "connect", _query_only)
        return engine
    return _postgres(url, timeout, pool_size=READ_THREADS, read_only=True)


def _sqlite(path: Path, *, busy_seconds: float, begin: str, pool_size: int) -> Engine:
    def connect() -> sqlite3.Connection:
        # `rw` never creates a file: a ledger that was deleted must not come back empty.
        mode = "rw" if os.access(path, os.W_OK) else "ro"
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            timeout=busy_seconds,
            isolation_level=None,  # the `begin` listener below starts transactions
            check_same_thread=False,
        )
        # NORMAL with WAL: a commit survives the death of any process; a power cut can lose the last ones.
        # What is deleted, or moves when a row grows, is overwritten with zeros.
        for pragma in (
            "synchronous = NORMAL",
            "foreign_keys = ON",
            "cache_size = -65536",
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        hide_parameters=True,
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _query_only(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


def _postgres(url: URL, timeout: float, *, pool_size: int, read_only: bool = False) -> Engine:
    milliseconds = int(timeout * 1000)
    options = f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds // 2} -c timezone=UTC"
    if read_only:
        options += " -c default_transaction_read_only=on"
    arguments: dict[str, Any] = {
        "connect_timeout": max(2, int(timeout)),  # libpq takes no less than 2 s
        "tcp_user_timeout": milliseconds,
        "options": options,
        "application_name": "paceline",
    }
    return create_engine(
        url,
        connect_args=arguments,
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=read_only,
        hide_parameters=True,
    )
