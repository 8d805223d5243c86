"""API keys: only a hash is kept, and a revoked key is of no use."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from paceline.errors import InvalidArgument, Unauthenticated
from paceline.ledger import keys
from paceline.ledger.keys import KeyStore
from paceline.ledger.store import SqlLedger
from paceline.ledger.tables import api_keys


async def test_a_key_leads_to_its_tenant(ledger: SqlLedger) -> None:
    store = KeyStore(ledger)
    one, made = await store.create("tenant-a", "laptop")
    two, _ = await store.create("tenant-b", "ci")
    assert one.startswith(f"pl_{made.key_id}_")
    assert [(await store.verify(key)).tenant for key in (one, two, one)] == ["tenant-a", "tenant-b", "tenant-a"]
    assert await store.list("tenant-a") == [made]
    assert [key.name for key in await store.list()] == ["laptop", "ci"]


async def test_the_secret_is_not_kept(ledger: SqlLedger) -> None:
    key, _ = await KeyStore(ledger).create("tenant-a", "laptop")
    rows = await ledger.database.read(lambda connection: connection.execute(select(api_keys)).all())
    assert len(rows) == 1
    secret = key.split("_", 2)[2]
    assert len(secret) >= 43  # 256 bits
    assert secret not in repr(rows)


async def test_wrong_keys_are_refused(ledger: SqlLedger) -> None:
    store = KeyStore(ledger)
    key, made = await store.create("tenant-a", "laptop")
    for wrong in ("", "pl", "pl_", key[:-1], f"{key}x", key.replace("pl_", "xx_"), f"pl_{made.key_id}_"):
        with pytest.raises(Unauthenticated):
            await store.verify(wrong)


async def test_a_revoked_key_is_refused_at_once_here_and_soon_elsewhere(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = KeyStore(ledger), KeyStore(ledger)
    key, made = await here.create("tenant-a", "laptop")
    await here.verify(key)
    monkeypatch.setattr(keys, "CACHE_SECONDS", 0.0)
    await elsewhere.verify(key)
    await here.revoke(made.key_id)
    await here.revoke(made.key_id)
    for store in (here, elsewhere):
        with pytest.raises(Unauthenticated, match="unknown or revoked"):
            await store.verify(key)
    assert (await here.list())[0].revoked_at is not None


async def test_a_verified_key_is_believed_without_asking_again(ledger: SqlLedger) -> None:
    store = KeyStore(ledger)
    key, _ = await store.create("tenant-a", "laptop")
    await store.verify(key)
    await ledger.close()
    assert (await store.verify(key)).tenant == "tenant-a"


async def test_bad_requests_name_the_field(ledger: SqlLedger) -> None:
    store = KeyStore(ledger)
    with pytest.raises(InvalidArgument, match="tenant"):
        await store.create("no spaces", "laptop")
    with pytest.raises(InvalidArgument, match="name"):
        await store.create("tenant-a", "")
    with pytest.raises(InvalidArgument, match="no key abc"):
        await store.revoke("abc")


async def test_tenants_may_have_short_names(ledger: SqlLedger) -> None:
    store = KeyStore(ledger)
    key, _ = await store.create("qa", "laptop")
    assert (await store.verify(key)).tenant == "qa"
