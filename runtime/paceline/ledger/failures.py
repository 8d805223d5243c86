"""Turn driver errors into `LedgerUnavailable` with a remedy."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import sqlalchemy.exc

from paceline.errors import InvalidArgument, LedgerUnavailable

_SQLITE = {
    sqlite3.SQLITE_BUSY: ("is locked by another process", "end the process that writes to it", True),
    sqlite3.SQLITE_LOCKED: ("is locked by another process", "end the process that writes to it", True),
    sqlite3.SQLITE_READONLY: ("is read-only", "make the file and its folder writable", False),
    sqlite3.SQLITE_FULL: ("does not fit on the disk", "free disk space", False),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "check the disk", False),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "check that the file exists and can be written", False),
    sqlite3.SQLITE_CORRUPT: ("is damaged", "restore it from a backup", False),
    sqlite3.SQLITE_NOTADB: ("is no SQLite database", "set ledger.url to another file", False),
}
_POSTGRES = {
    "25006": ("is read-only", "connect to the primary", False),
    "40001": ("is contended", "try again", True),
    "40P01": ("is contended", "try again", True),
    "42501": ("refuses the user", "grant the user rights on the tables", False),
    "53100": ("is out of disk space", "free disk space", False),
    "53300": ("has no free connection", "raise max_connections", True),
    "55P03": ("is locked by another session", "end the session that locks the tables", True),
    "57014": ("was too slow", "check the load of the server", True),
}
_UNKNOWN = ("does not answer", "start it and check ledger.url", True)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed access: the error for the caller, and whether it may pass by itself within seconds."""

    error: LedgerUnavailable
    passing: bool


def translate(error: sqlalchemy.exc.DBAPIError, database: str) -> Failure:
    """Describe the failure of an access to `database`."""
    problem, remedy, passing = _look_up(error)
    return Failure(unavailable(database, problem, remedy), passing)


def not_storable(error: sqlalchemy.exc.DataError) -> InvalidArgument:
    """The error for a value that the database cannot hold, such as a NUL in a text of PostgreSQL."""
    return InvalidArgument(f"the database cannot store a value: {error.orig}", cause=error.orig)


def unavailable(database: str, problem: str, remedy: str) -> LedgerUnavailable:
    """The error that callers see."""
    return LedgerUnavailable(
        f"the ledger {database} {problem}; {remedy}", database=database, problem=problem, remedy=remedy
    )


def _look_up(error: sqlalchemy.exc.DBAPIError) -> tuple[str, str, bool]:
    original = error.orig
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        return _SQLITE.get(code, (f"failed: {original}", "run `paceline db check`", False))
    state = getattr(original, "sqlstate", None)
    if state is None or (state[:2] in {"08", "57"} and state != "57014"):
        return _UNKNOWN
    return _POSTGRES.get(state, (f"failed: {original}".rstrip(), "run `paceline db check`", False))
