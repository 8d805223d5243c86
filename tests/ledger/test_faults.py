"""The database fails: callers hear it in time, nothing is half-written, and the writer works again afterwards."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from tests.ledger.conftest import Postgres
from tests.ledger.rows import TENANT, attempt, step, workflow

from paceline.errors import InvalidArgument, LedgerUnavailable, WorkflowNotFound
from paceline.ledger.attempts import open_step
from paceline.ledger.store import SqlLedger
from paceline.ledger.writer import Operation

PATIENT = 60.0
IMPATIENT = 2.0  # seconds: long enough for a busy machine, short enough to wait for


@pytest.fixture
async def patient(url: str) -> AsyncIterator[SqlLedger]:
    """A ledger with one workflow."""
    opened = await SqlLedger.open(url, write_timeout=PATIENT)
    await opened.create_workflow(workflow(), "hash")
    yield opened
    await opened.close()


@pytest.fixture
async def in_file(sqlite_url: str) -> AsyncIterator[tuple[SqlLedger, Path]]:
    """A ledger with one workflow, and its file."""
    opened = await SqlLedger.open(sqlite_url, write_timeout=PATIENT)
    await opened.create_workflow(workflow(), "hash")
    yield opened, Path(sqlite_url.removeprefix("sqlite:///"))
    await opened.close()


@asynccontextmanager
async def opened(url: str, write_timeout: float) -> AsyncIterator[SqlLedger]:
    ledger = await SqlLedger.open(url, write_timeout=write_timeout)
    try:
        yield ledger
    finally:
        await ledger.close()


async def step_count(ledger: SqlLedger) -> int:
    return (await ledger.counts())["steps"]


async def statement(ledger: SqlLedger, sql: str) -> None:
    """Run a statement on the writer's own connection, to break it in a way that the driver reports."""
    await ledger.database.write(Operation(lambda connection: connection.exec_driver_sql(sql).close()))


async def test_a_locked_file_is_reported_and_used_again(in_file: tuple[SqlLedger, Path]) -> None:
    _, path = in_file
    async with opened(f"sqlite:///{path}", IMPATIENT) as ledger:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(
                LedgerUnavailable, match=r"ledger\.db is locked by another process; end the process"
            ):
                await ledger.open_step(step(), attempt(step()))
            other.execute("COMMIT")
        assert await step_count(ledger) == 0
        await ledger.open_step(step(), attempt(step()))
        assert await step_count(ledger) == 1


async def test_a_write_waits_for_a_short_lock(in_file: tuple[SqlLedger, Path]) -> None:
    ledger, path = in_file
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(ledger.create_workflow(workflow("wf-00002"), "hash"))
        await asyncio.sleep(0.3)
        assert not write.done()
        assert (await ledger.get_workflow(TENANT, "wf-00001")).model == "model-a"  # reads go on
        other.execute("COMMIT")
    assert (await write).workflow_id == "wf-00002"


async def test_a_read_only_file_is_reported(in_file: tuple[SqlLedger, Path]) -> None:
    ledger, _ = in_file
    await statement(ledger, "PRAGMA query_only = ON")
    with pytest.raises(LedgerUnavailable, match="is read-only; make the file and its folder writable"):
        await ledger.open_step(step(), None)
    await ledger.open_step(step(), None)  # on a new connection


async def test_a_full_disk_is_reported(in_file: tuple[SqlLedger, Path]) -> None:
    ledger, _ = in_file
    await statement(ledger, "PRAGMA max_page_count = 1")  # SQLite takes the present size
    big = workflow("wf-large", labels={"text": "x" * 1_000_000})
    with pytest.raises(LedgerUnavailable, match="does not fit on the disk; free disk space"):
        await ledger.create_workflow(big, "hash")
    with pytest.raises(WorkflowNotFound):
        await ledger.get_workflow(TENANT, "wf-large")
    await ledger.create_workflow(big, "hash")  # on a new connection, without the limit
    assert (await ledger.get_workflow(TENANT, "wf-large")).labels == big.labels


async def test_a_deleted_file_takes_no_writes_until_it_is_back(in_file: tuple[SqlLedger, Path]) -> None:
    ledger, path = in_file
    aside = path.with_suffix(".aside")
    path.rename(aside)
    with pytest.raises(LedgerUnavailable, match="was deleted or replaced; put the file back"):
        await ledger.open_step(step(), None)
    assert not path.exists()
    aside.rename(path)
    await ledger.open_step(step(), None)
    assert await step_count(ledger) == 1


@pytest.mark.postgres
async def test_a_locked_table_is_reported_and_used_again(postgres: Postgres) -> None:
    url = postgres.migrated()
    async with opened(url, PATIENT) as ledger, other_session(url) as other:
        await ledger.create_workflow(workflow(), "hash")
        async with opened(url, IMPATIENT) as impatient:
            with other.begin():
                other.execute(text("LOCK TABLE steps"))
                with pytest.raises(LedgerUnavailable, match="is locked by another session; end the session"):
                    await impatient.open_step(step(), attempt(step()))
            assert await step_count(ledger) == 0
            await impatient.open_step(step(), attempt(step()))


@pytest.mark.postgres
async def test_a_broken_connection_is_made_again_within_the_same_write(postgres: Postgres) -> None:
    url = postgres.migrated()
    async with opened(url, PATIENT) as ledger, other_session(url) as other:
        await ledger.create_workflow(workflow(), "hash")
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname"
        with other.begin():
            assert other.execute(text(f"{ended} = current_database()")).all()
        await ledger.open_step(step(), attempt(step()))
        assert await step_count(ledger) == 1


@pytest.mark.postgres
async def test_a_read_only_server_is_reported(postgres: Postgres) -> None:
    async with opened(postgres.migrated(), PATIENT) as ledger:
        await ledger.create_workflow(workflow(), "hash")
        await statement(ledger, "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        with pytest.raises(LedgerUnavailable, match="is read-only; connect to the primary"):
            await ledger.open_step(step(), None)
        await ledger.open_step(step(), None)


@asynccontextmanager
async def other_session(url: str) -> AsyncIterator[Connection]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@pytest.mark.postgres
async def test_a_server_that_is_not_there_is_reported() -> None:
    url = "postgresql+psycopg://nobody@/nothing?host=/nonexistent"
    with pytest.raises(LedgerUnavailable, match="does not answer; start it and check"):
        await SqlLedger.open(url, write_timeout=3)


async def test_one_bad_operation_of_a_batch_fails_alone(patient: SqlLedger) -> None:
    def broken(_connection: object) -> None:
        raise ValueError("a defect")

    steps = [step(f"st-{number:05}") for number in range(10)]
    steps[4] = step("st-00004", workflow_id="wf-nobody")
    steps[7] = step("st-00007", request_id=steps[6].request_id)
    writes = [patient.open_step(item, attempt(item)) for item in steps]
    results = await asyncio.gather(*writes, patient.database.write(Operation(broken)), return_exceptions=True)
    failures = {number: type(result).__name__ for number, result in enumerate(results) if result is not None}
    assert failures == {4: "WorkflowNotFound", 7: "RequestIdReused", 10: "ValueError"}
    assert await step_count(patient) == 8


async def test_a_hanging_database_does_not_hang_its_callers(patient: SqlLedger, url: str) -> None:
    """What its callers gave up meanwhile is not committed afterwards, whether it waited or was running."""
    async with opened(url, IMPATIENT) as ledger:
        release = threading.Event()

        def insert_and_hang(connection: Connection) -> None:
            open_step(step("st-00003"), None).run(connection)
            release.wait(60)

        hanging = asyncio.create_task(ledger.database.write(Operation(insert_and_hang)))
        waiting = asyncio.create_task(ledger.open_step(step(), None))
        for task in (hanging, waiting):
            with pytest.raises(LedgerUnavailable, match="hangs; check its load"):
                await task
        release.set()
        await ledger.open_step(step("st-00002"), None)
    found = await patient.list_steps(TENANT, "wf-00001", 10, "")
    assert [item.step_id for item in found.items] == ["st-00002"]


async def test_closing_commits_what_waits(patient: SqlLedger, url: str) -> None:
    async with opened(url, PATIENT) as ledger:
        steps = [step(f"st-{number:05}") for number in range(300)]
        writes = [asyncio.create_task(ledger.open_step(item, None)) for item in steps]
        await asyncio.sleep(0)
    await asyncio.gather(*writes)
    with pytest.raises(LedgerUnavailable, match="is closed"):
        await ledger.open_step(step("st-late0"), None)
    assert await step_count(patient) == 300


@pytest.mark.postgres
async def test_text_that_postgres_cannot_store_is_an_invalid_argument(postgres: Postgres) -> None:
    async with opened(postgres.migrated(), PATIENT) as ledger:
        with pytest.raises(InvalidArgument, match="cannot store"):
            await ledger.create_workflow(workflow(labels={"name": "NUL \0"}), "hash")


@pytest.mark.postgres
async def test_an_id_that_postgres_cannot_hold_is_an_invalid_argument(postgres: Postgres) -> None:
    async with opened(postgres.migrated(), PATIENT) as ledger:
        with pytest.raises(InvalidArgument, match="cannot store"):
            await ledger.find_step(TENANT, "rq\0")
