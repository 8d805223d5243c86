"""The schema: its migrations, the upgrade, and the check at start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.exc import DBAPIError

from paceline.errors import ConfigError, LedgerUnavailable, SchemaOutdated
from paceline.ledger.engine import parse_url, sqlite_path
from paceline.ledger.failures import translate
from paceline.ledger.lock import FileLock

CONNECT_SECONDS = 10


def upgrade(url: str, revision: str = "head") -> None:
    """Create or upgrade the schema up to `revision`. A new SQLite file is made, readable by its owner only.

    Raises `LedgerInUse` while a runtime uses the SQLite file, and `LedgerUnavailable`.
    """
    with _migration(url) as config:
        command.upgrade(config, revision)


def downgrade(url: str, revision: str) -> None:
    """Take the schema back to `revision`; data of later revisions is lost. Errors as `upgrade`."""
    with _migration(url) as config:
        command.downgrade(config, revision)


def create_if_missing(url: str) -> None:
    """Make the SQLite file of a first start. An existing file and PostgreSQL are left alone."""
    path = sqlite_path(parse_url(url))
    if path is not None and not path.exists():
        upgrade(url)


def check(connection: Connection) -> None:
    """Raise `SchemaOutdated` unless the database is at the revision of this version."""
    found = MigrationContext.configure(connection).get_current_revision()
    expected = ScriptDirectory.from_config(_config()).get_current_head()
    if found == expected:
        return
    if found is None:
        problem = "the database has no ledger tables"
    else:
        problem = f"the database is at schema {found}, this version needs {expected}"
    raise SchemaOutdated(f"{problem}; run `paceline db upgrade`", found=found, expected=expected)


@contextmanager
def _migration(url: str) -> Iterator[Config]:
    """A configured Alembic on a connection of its own; on SQLite under the runtime's lock."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    with ExitStack() as stack:
        if path:
            _make_file(path)
            stack.callback(FileLock(path, "a schema upgrade").release)
        engine = create_engine(parsed, connect_args={} if path else {"connect_timeout": CONNECT_SECONDS})
        stack.callback(engine.dispose)
        try:
            with engine.connect() as connection:
                if path:
                    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                    connection.commit()
                config = _config()
                config.attributes["connection"] = connection
                yield config
                connection.commit()
        except DBAPIError as error:
            raise translate(error, describe(parsed)).error from error


def describe(url: URL) -> str:
    """Name a database in messages: its file, or its address without the password."""
    return str(sqlite_path(url) or url.render_as_string(hide_password=True))


def _make_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise LedgerUnavailable(
            f"ledger.url: cannot make {path}: {error.strerror}; name a file in a folder that can be written",
            field="ledger.url",
            path=path,
        ) from None


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_migrations()))
    config.set_main_option("path_separator", "os")
    return config


def _migrations() -> Path:
    """The folder in the wheel, or the one of the checkout for an editable install."""
    package = Path(str(files("paceline")))
    for folder in (package / "migrations", package.parents[1] / "migrations"):
        if (folder / "env.py").exists():
            return folder
    raise ConfigError(f"the migrations are missing beside {package}; install paceline again", package=package)
