"""API keys. A key is `pl_<id>_<secret>`; the ledger keeps only a hash of the secret.

The secret is 256 random bits, so a plain SHA-256 suffices: slow hashes protect passwords that can be guessed, and
would cost tens of milliseconds on each first call here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from paceline.errors import InvalidArgument, Unauthenticated
from paceline.ledger.rows import from_microseconds, now
from paceline.ledger.store import SqlLedger
from paceline.ledger.tables import api_keys
from paceline.ledger.writer import Operation

PREFIX = "pl"
CACHE_SECONDS = 5.0
MAX_NAME = 256
TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key; never its secret."""

    key_id: str
    tenant: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


class KeyStore:
    """Makes, lists, revokes and verifies keys. A verified key is believed for `CACHE_SECONDS`, so a revoked one
    works at most that much longer."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._database = ledger.database
        self._verified: dict[bytes, tuple[ApiKey, float]] = {}

    async def create(self, tenant: str, name: str) -> tuple[str, ApiKey]:
        """Make a key for a tenant; returns its text, which nobody can read again. Raises `InvalidArgument`."""
        if not TENANT.fullmatch(tenant):
            raise InvalidArgument("tenant: give 1 to 64 of A-Z, a-z, 0-9, _, . and -", field="tenant")
        if not 0 < len(name) <= MAX_NAME:
            raise InvalidArgument(f"name: give 1 to {MAX_NAME} characters", field="name")
        key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        moment = now()
        row = {
            "key_id": key_id,
            "secret_hash": _hash(secret),
            "tenant": tenant,
            "name": name,
            "created_at": moment,
        }
        await self._database.write(Operation(lambda connection: _insert(connection, row)))
        return f"{PREFIX}_{key_id}_{secret}", ApiKey(key_id, tenant, name, from_microseconds(moment), None)

    async def list(self, tenant: str | None = None) -> list[ApiKey]:
        """Return the keys of a tenant, or all, oldest first."""
        statement = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.key_id)
        if tenant is not None:
            statement = statement.where(api_keys.c.tenant == tenant)
        return await self._database.read(lambda connection: [_key(row) for row in connection.execute(statement)])

    async def revoke(self, key_id: str) -> None:
        """Make a key useless, for good. Raises `InvalidArgument` for an unknown one."""
        known = await self._database.write(Operation(lambda connection: _revoke(connection, key_id)))
        if not known:
            raise InvalidArgument(
                f"key_id: there is no key {key_id}; `paceline keys list` shows them", field="key_id", key_id=key_id
            )
        self._verified.clear()

    async def verify(self, key: str) -> ApiKey:
        """Return what is known of a key. Raises `Unauthenticated` if it is unknown or revoked."""
        digest = hashlib.sha256(key.encode()).digest()
        if (known := self._verified.get(digest)) and known[1] > time.monotonic():
            return known[0]
        self._verified.pop(digest, None)
        prefix, _, rest = key.partition("_")
        key_id, _, secret = rest.partition("_")
        row = await self._database.read(lambda connection: _find(connection, key_id))
        fits = row is not None and hmac.compare_digest(row.secret_hash, _hash(secret))
        if row is None or not fits or prefix != PREFIX or row.revoked_at is not None:
            raise Unauthenticated("the API key is unknown or revoked; ask for one made by `paceline keys create`")
        found = _key(row)
        self._verified[digest] = (found, time.monotonic() + CACHE_SECONDS)
        return found


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _insert(connection: Connection, row: dict[str, Any]) -> None:
    connection.execute(insert(api_keys), row)


def _revoke(connection: Connection, key_id: str) -> bool:
    row = _find(connection, key_id)
    if row is not None and row.revoked_at is None:
        connection.execute(update(api_keys).where(api_keys.c.key_id == key_id).values(revoked_at=now()))
    return row is not None


def _find(connection: Connection, key_id: str) -> Row[Any] | None:
    return connection.execute(select(api_keys).where(api_keys.c.key_id == key_id)).one_or_none()


def _key(row: Row[Any]) -> ApiKey:
    revoked_at = from_microseconds(row.revoked_at) if row.revoked_at is not None else None
    return ApiKey(row.key_id, row.tenant, row.name, from_microseconds(row.created_at), revoked_at)
