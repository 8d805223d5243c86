"""Run migrations: on the connection that `paceline.ledger.schema` gives, else on the configured ledger."""

from alembic import context
from sqlalchemy import Connection, create_engine, text

from paceline import config
from paceline.ledger.tables import metadata

LOCK = 0x7061_6365  # an arbitrary key that all Paceline migrations share


def run(connection: Connection) -> None:
    """Migrate in one transaction; on PostgreSQL one process at a time."""
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        context.run_migrations()


if (given := context.config.attributes.get("connection")) is not None:
    run(given)
else:
    with create_engine(config.load().ledger_url).connect() as own:
        run(own)
        own.commit()
