"""Statements of the hot path: compiled once, then run on the driver's own cursor.

SQLAlchemy's work per call is several times that of SQLite for a statement with twenty columns. Values must be what
the driver takes as it is: str, int, float, bool, bytes or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Select, Update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError

Values = Mapping[str, Any]


class HotStatement:
    """A statement whose parameters are all named and without a value. `columns` names those of an INSERT."""

    def __init__(self, statement: Insert | Update | Delete | Select[Any], columns: Iterable[str] = ()) -> None:
        self._statement = statement
        self._columns = list(columns) or None
        self._texts: dict[str, str] = {}

    def run(self, connection: Connection, values: Values) -> DBAPICursor:
        """Run once and return the cursor, for its `rowcount` or `fetchone()`. Raises SQLAlchemy's errors."""
        text = self._text(connection)
        cursor = connection.connection.cursor()
        try:
            cursor.execute(text, values)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _wrapped(connection, text, error) from error
        return cursor

    def run_many(self, connection: Connection, rows: list[Values]) -> None:
        """Run once for each row of values."""
        text = self._text(connection)
        cursor = connection.connection.cursor()
        try:
            cursor.executemany(text, rows)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _wrapped(connection, text, error) from error

    def _text(self, connection: Connection) -> str:
        name = connection.dialect.name
        if name not in self._texts:
            dialect = sqlite.dialect(paramstyle="named") if name == "sqlite" else connection.dialect
            self._texts[name] = str(self._statement.compile(dialect=dialect, column_keys=self._columns))
        return self._texts[name]


def _wrapped(connection: Connection, text: str, error: Exception) -> BaseException:
    """The SQLAlchemy error of a driver error, without the values: they are people's prompts."""
    base = connection.dialect.loaded_dbapi.Error
    return DBAPIError.instance(text, None, error, base, hide_parameters=True, dialect=connection.dialect)
