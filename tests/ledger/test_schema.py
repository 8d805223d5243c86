"""Migrations: up, down, up again, equal to the tables; and the check at start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Boolean, Float, Integer, MetaData, String, Table, create_engine, inspect
from sqlalchemy.schema import CreateIndex, CreateTable
from tests.ledger.conftest import BACKENDS, Postgres

from paceline.errors import ConfigError, LedgerInUse, LedgerUnavailable, SchemaOutdated
from paceline.ledger import schema
from paceline.ledger.engine import parse_url
from paceline.ledger.lock import FileLock
from paceline.ledger.store import SqlLedger
from paceline.ledger.tables import metadata


@pytest.fixture(params=BACKENDS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.empty()


def tables_of(url: str) -> set[str]:
    engine = create_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_up_down_and_up_again(empty_url: str) -> None:
    schema.upgrade(empty_url)
    assert tables_of(empty_url) == {*metadata.tables, "alembic_version"}
    schema.downgrade(empty_url, "base")
    assert tables_of(empty_url) == {"alembic_version"}
    schema.upgrade(empty_url)
    assert tables_of(empty_url) == {*metadata.tables, "alembic_version"}


_NEW_IN_2 = {"step_class", "draft_steps", "pool_choice", "pool_saving_us", "pool_prefill_us"}


def test_an_upgrade_with_rows_keeps_them(empty_url: str) -> None:
    """An attempt of revision 0001 goes up, down and up again; what it could not know is NULL."""
    schema.upgrade(empty_url, "0001")
    engine = create_engine(empty_url)
    old_tables = MetaData()
    old_tables.reflect(engine)
    assert not _NEW_IN_2 & set(old_tables.tables["attempts"].c.keys())
    written: dict[str, dict[str, object]] = {}
    with engine.begin() as connection:
        for name in ("workflows", "steps", "attempts"):
            written[name] = _filled(old_tables.tables[name])
            connection.execute(old_tables.tables[name].insert(), written[name])
    engine.dispose()
    for go in (schema.upgrade, lambda url: schema.downgrade(url, "0001"), schema.upgrade):
        go(empty_url)
        for name, row in written.items():
            found = _only_row(empty_url, name)
            assert {column: found[column] for column in row} == row
    assert _only_row(empty_url, "workflows")["transcript_policy"] == "append_only"
    attempt = _only_row(empty_url, "attempts")
    assert {name: attempt[name] for name in _NEW_IN_2} == dict.fromkeys(_NEW_IN_2)


def _filled(table: Table) -> dict[str, object]:
    """A value for every column that must have one, and for every number."""
    row: dict[str, object] = {}
    for column in table.c:
        if column.foreign_keys and column.nullable:
            continue
        if isinstance(column.type, String) and not column.nullable:
            row[column.name] = "x"
        elif isinstance(column.type, Integer | Float):
            row[column.name] = 1
        elif isinstance(column.type, Boolean):
            row[column.name] = True
    return row


def _only_row(url: str, table: str) -> dict[str, object]:
    engine = create_engine(url)
    with engine.connect() as connection:
        (row,) = connection.exec_driver_sql(f"SELECT * FROM {table}").mappings()
    engine.dispose()
    return dict(row)


def test_migrations_make_the_tables_of_the_models(url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, metadata)
    engine.dispose()
    assert differences == []


def test_migrated_sqlite_has_the_same_ddl_as_the_models(sqlite_url: str) -> None:
    """Autogenerate does not compare everything (partial indexes, for one); the text of the DDL does."""
    engine = create_engine(sqlite_url)
    expected = {_normal(str(CreateTable(table).compile(engine))) for table in metadata.sorted_tables}
    for table in metadata.sorted_tables:
        expected |= {_normal(str(CreateIndex(index).compile(engine))) for index in table.indexes}
    with engine.connect() as connection:
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name <> 'alembic_version'"
        found = {_normal(row.sql) for row in connection.exec_driver_sql(query)}
    engine.dispose()
    assert found == expected


def _normal(ddl: str) -> str:
    """DDL with the order inside a table's parentheses and the white space taken out."""
    head, _, body = " ".join(ddl.split()).partition("(")
    if not head.startswith("CREATE TABLE"):
        return f"{head.strip()} ({body}".replace('"', "")
    parts = re.split(r",\s*(?![^()]*\))", body.rstrip(") ") + ")")
    return head.strip() + "|" + ",".join(sorted(part.strip(" )") for part in parts))


async def test_a_database_without_tables_is_refused(empty_url: str) -> None:
    schema.upgrade(empty_url)
    schema.downgrade(empty_url, "base")
    with pytest.raises(SchemaOutdated, match="no ledger tables; run `paceline db upgrade`"):
        await SqlLedger.open(empty_url, write_timeout=5)


async def test_a_newer_schema_is_refused(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(SchemaOutdated, match="at schema 9999, this version needs 0006"):
        await SqlLedger.open(url, write_timeout=5)


async def test_a_first_start_makes_the_file_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ledger.db"
    schema.create_if_missing(f"sqlite:///{path}")
    assert path.stat().st_mode & 0o777 == 0o600
    ledger = await SqlLedger.open(f"sqlite:///{path}", write_timeout=5)
    await ledger.close()


async def test_a_missing_file_is_not_made_by_opening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerUnavailable, match="does not exist"):
        await SqlLedger.open(f"sqlite:///{path}", write_timeout=5)
    assert not path.exists()


def test_an_upgrade_is_refused_while_a_runtime_uses_the_file(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    lock = FileLock(path, "rt-1")
    with pytest.raises(LedgerInUse, match="used by rt-1"):
        schema.upgrade(sqlite_url)
    lock.release()
    schema.upgrade(sqlite_url)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("x" * 5000)
    with pytest.raises(LedgerUnavailable, match=r"ledger\.db is no SQLite database"):
        schema.upgrade(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "bad", ["", "ledger.db", "sqlite://", "sqlite:///:memory:", "mysql://h/d", "sqlite:///a.db?x=1"]
)
def test_other_urls_are_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"ledger\.url"):
        parse_url(bad)


def test_passwords_do_not_show() -> None:
    url = parse_url("postgresql+psycopg://paceline:secret@db.example/ledger")
    assert schema.describe(url) == "postgresql+psycopg://paceline:***@db.example/ledger"
