"""Content goes, everything else stays: by hand and in time, on each backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from tests.ledger.rows import NOW, TENANT, attempt, finished, ids, run_step, step, workflow

from paceline.errors import WorkflowBusy, WorkflowNotFound
from paceline.ledger import deletion
from paceline.ledger.store import SqlLedger
from paceline.ledger.writer import Operation
from paceline.workflow.deletion import Deletion
from paceline.workflow.model import Message, Role, StepState, StorePolicy, Tool, Workflow
from paceline.workflow.ports import Retention
from paceline.workflow.turns import Turns, turn_of

DAY = 86_400.0
SECRET = "the marker of this test"


def fork_of(source: Workflow, workflow_id: str, step_id: str) -> Workflow:
    parent = source.workflow_id
    return replace(
        source, workflow_id=workflow_id, parent_workflow_id=parent, forked_step_id=step_id, head_step_id=step_id
    )


async def rows(ledger: SqlLedger, query: str, **values: Any) -> list[dict[str, Any]]:
    return await ledger.database.read(
        lambda connection: [dict(row._mapping) for row in connection.execute(text(query), values)]
    )


async def chain(ledger: SqlLedger, workflow_id: str, *names: str, parent: str | None = None) -> None:
    for name in names:
        await run_step(ledger, step(name, workflow_id=workflow_id, parent=parent))
        parent = name


async def marked(ledger: SqlLedger, *workflow_ids: str) -> list[bool]:
    found = [await ledger.get_workflow(TENANT, workflow_id) for workflow_id in workflow_ids]
    return [one.content_deleted_at is not None for one in found]


async def test_content_goes_and_the_rest_stays(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await chain(ledger, "wf-00001", "st-00001", "st-00002")
    before = await ledger.get_step(TENANT, "st-00002")
    (kept,) = await rows(ledger, "SELECT message_keys, chain_hash FROM steps WHERE step_id = 'st-00002'")
    await ledger.delete_content(TENANT, "wf-00001")
    after = await ledger.get_step(TENANT, "st-00002")
    assert after.gone
    assert after == replace(before, input=(), output=None, segments=None, system="", tools=())
    assert (await rows(ledger, "SELECT message_keys, chain_hash FROM steps WHERE step_id = 'st-00002'")) == [kept]
    link = (await ledger.load_links(TENANT, "st-00002"))[-1]
    assert (link.gone, link.tokens, link.calls) == (True, 1050, ())
    stored = await ledger.get_workflow(TENANT, "wf-00001")
    assert (stored.system, stored.tools, stored.system_gone, stored.tools_gone) == ("", (), True, True)
    assert stored.content_deleted_at
    assert (await rows(ledger, "SELECT spent_tokens FROM workflows")) != [{"spent_tokens": 0}]


async def test_a_failed_step_loses_its_words_too(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    first = attempt(step())
    await ledger.open_step(step(), first)
    end = replace(finished(first), state=StepState.FAILED, output=None, segments=None, error_message=SECRET)
    await ledger.close_attempt(replace(end, error_reason="ENGINE_REFUSED"))
    await ledger.delete_content(TENANT, "wf-00001")
    stored = await ledger.get_step(TENANT, "st-00001")
    assert (stored.input, stored.error_reason, stored.error_message) == ((), "ENGINE_REFUSED", "")


async def test_preambles_that_others_use_stay(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow("wf-00001"), "hash")
    await ledger.create_workflow(workflow("wf-00002"), "hash")
    await chain(ledger, "wf-00001", "st-00001")
    await chain(ledger, "wf-00002", "st-00002")
    await ledger.delete_content(TENANT, "wf-00001")
    assert (await ledger.get_step(TENANT, "st-00002")).system == "You repair programs."
    assert len(await rows(ledger, "SELECT * FROM preambles")) == 1
    await ledger.delete_content(TENANT, "wf-00002")
    assert await rows(ledger, "SELECT * FROM preambles") == []


async def test_again_and_in_small_parts(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "STEPS_AT_ONCE", 2)
    await ledger.create_workflow(workflow(), "hash")
    names = [f"st-0000{number}" for number in range(5)]
    await chain(ledger, "wf-00001", *names)
    await ledger.delete_content(TENANT, "wf-00001")
    assert [step.gone for step in await ledger.load_chain(TENANT, names[-1])] == [True] * 5
    await ledger.delete_content(TENANT, "wf-00001")
    assert await marked(ledger, "wf-00001") == [True]


async def test_one_that_was_cut_off_goes_on(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "STEPS_AT_ONCE", 1)
    await ledger.create_workflow(workflow(), "hash")
    await chain(ledger, "wf-00001", "st-00001", "st-00002")
    assert not await ledger.database.write(deletion.delete_content(TENANT, "wf-00001", None))
    assert await marked(ledger, "wf-00001") == [False]
    assert [one.workflow_id for one in await ledger.expired(Retention(DAY), 10)] == []
    await _age(ledger, "wf-00001", DAY + 1)
    (due,) = await ledger.expired(Retention(DAY), 10)
    await ledger.delete_content(TENANT, due.workflow_id, due.updated_at)
    assert [step.gone for step in await ledger.load_chain(TENANT, "st-00002")] == [True, True]
    assert await marked(ledger, "wf-00001") == [True]


@pytest.mark.parametrize("queued", [True, False])
async def test_a_step_under_way_refuses_it(ledger: SqlLedger, *, queued: bool) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await chain(ledger, "wf-00001", "st-00001")
    busy = step("st-00002", parent="st-00001")
    await ledger.open_step(busy, None if queued else attempt(busy))
    with pytest.raises(WorkflowBusy, match="st-00002"):
        await ledger.delete_content(TENANT, "wf-00001")
    assert not (await ledger.get_step(TENANT, "st-00001")).gone


async def test_only_ones_own(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    with pytest.raises(WorkflowNotFound):
        await ledger.delete_content("team-b", "wf-00001")


async def test_what_changed_since_is_left(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await chain(ledger, "wf-00001", "st-00001")
    await ledger.delete_content(TENANT, "wf-00001", NOW)
    assert not (await ledger.get_step(TENANT, "st-00001")).gone
    changed = (await ledger.get_workflow(TENANT, "wf-00001")).updated_at
    await ledger.delete_content(TENANT, "wf-00001", changed)
    assert (await ledger.get_step(TENANT, "st-00001")).gone


async def test_forks_that_share_it_are_marked(ledger: SqlLedger) -> None:
    """A fork of the fork, too, but neither the origin nor what was forked before the workflow began."""
    root = workflow("wf-root")
    fork = fork_of(root, "wf-fork", "st-root")
    await ledger.create_workflow(root, "hash")
    await chain(ledger, "wf-root", "st-root")
    await ledger.create_workflow(fork, "hash")
    await chain(ledger, "wf-fork", "st-fork", parent="st-root")
    await ledger.create_workflow(fork_of(fork, "wf-heir", "st-fork"), "hash")
    await chain(ledger, "wf-heir", "st-heir", parent="st-fork")
    heir = fork_of(fork, "wf-heir", "st-fork")
    await ledger.create_workflow(fork_of(heir, "wf-heir2", "st-heir"), "hash")
    await ledger.create_workflow(fork_of(fork, "wf-aside", "st-root"), "hash")
    await ledger.delete_content(TENANT, "wf-fork")
    names = ("wf-root", "wf-fork", "wf-heir", "wf-heir2", "wf-aside")
    assert await marked(ledger, *names) == [False, True, True, True, False]
    assert [link.gone for link in await ledger.load_links(TENANT, "st-heir")] == [False, True, False]
    stored = await ledger.get_workflow(TENANT, "wf-heir")
    assert (stored.system, stored.system_gone) == ("You repair programs.", False)


async def test_a_fork_made_later_is_marked_as_its_origin_is(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await chain(ledger, "wf-00001", "st-00001")
    await ledger.delete_content(TENANT, "wf-00001")
    await ledger.create_workflow(fork_of(workflow(), "wf-late", "st-00001"), "hash")
    await ledger.create_workflow(workflow("wf-child", parent="wf-00001"), "hash")
    origin, late, child = [await ledger.get_workflow(TENANT, name) for name in ("wf-00001", "wf-late", "wf-child")]
    assert late.content_deleted_at == origin.content_deleted_at
    assert child.content_deleted_at is None


async def test_one_that_stores_nothing_has_no_words(ledger: SqlLedger) -> None:
    made = await ledger.create_workflow(replace(workflow(), store=StorePolicy.NONE), "hash")
    assert (made.system, made.tools, made.system_gone, made.tools_gone) == ("", (), True, True)
    bare = replace(workflow("wf-00002"), store=StorePolicy.NONE, system="", tools=())
    assert not (await ledger.create_workflow(bare, "hash")).tools_gone


async def test_deletions_are_told(ledger: SqlLedger) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await ledger.create_workflow(workflow(), "hash")
    assert await ledger.deleted_since(before) == []
    await ledger.delete_content(TENANT, "wf-00001")
    at = (await ledger.get_workflow(TENANT, "wf-00001")).content_deleted_at
    assert at
    assert await ledger.deleted_since(before) == [(TENANT, "wf-00001", at)]
    assert await ledger.deleted_since(at + timedelta(microseconds=1)) == []


async def _age(ledger: SqlLedger, workflow_id: str, seconds: float) -> None:
    """Let a workflow not have changed for so long."""
    moment = round((datetime.now(UTC).timestamp() - seconds) * 1e6)
    operation = Operation(
        lambda connection: connection.execute(
            text("UPDATE workflows SET updated_at = :moment WHERE workflow_id = :workflow_id"),
            {"moment": moment, "workflow_id": workflow_id},
        )
    )
    await ledger.database.write(operation)


async def due(ledger: SqlLedger, retention: Retention) -> set[str]:
    return {one.workflow_id for one in await ledger.expired(retention, 10)}


async def test_each_has_its_time(ledger: SqlLedger) -> None:
    """The workflow's own comes before the tenant's, the tenant's before that of all."""
    await ledger.create_workflow(workflow("wf-plain"), "hash")
    await ledger.create_workflow(replace(workflow("wf-short"), retention_seconds=3600), "hash")
    await ledger.create_workflow(replace(workflow("wf-long"), retention_seconds=30 * int(DAY)), "hash")
    await ledger.create_workflow(workflow("wf-other", tenant="team-b"), "hash")
    await ledger.create_workflow(replace(workflow("wf-none"), store=StorePolicy.NONE), "hash")
    for name in ("wf-plain", "wf-short", "wf-long", "wf-other", "wf-none"):
        await _age(ledger, name, 2 * DAY)
    assert await due(ledger, Retention()) == {"wf-short"}
    assert await due(ledger, Retention(3 * DAY)) == {"wf-short"}
    assert await due(ledger, Retention(DAY)) == {"wf-short", "wf-plain", "wf-other"}
    assert await due(ledger, Retention(DAY, {"team-b": 3 * DAY})) == {"wf-short", "wf-plain"}
    assert await due(ledger, Retention(None, {"team-b": DAY})) == {"wf-short", "wf-other"}
    assert len(await ledger.expired(Retention(DAY), 2)) == 2


async def test_one_that_runs_or_has_forks_waits(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow("wf-00001"), "hash")
    await chain(ledger, "wf-00001", "st-00001")
    await ledger.create_workflow(fork_of(workflow("wf-00001"), "wf-fork", "st-00001"), "hash")
    await ledger.create_workflow(workflow("wf-child", parent="wf-00001"), "hash")
    for name in ("wf-00001", "wf-child"):
        await _age(ledger, name, 2 * DAY)
    await _age(ledger, "wf-fork", 0)
    assert await due(ledger, Retention(DAY)) == {"wf-child"}
    await _age(ledger, "wf-fork", 2 * DAY)
    assert await due(ledger, Retention(DAY)) == {"wf-child", "wf-fork"}
    await ledger.delete_content(TENANT, "wf-fork")
    assert await due(ledger, Retention(DAY)) == {"wf-child", "wf-00001"}
    await ledger.open_step(step("st-busy"), None)
    await _age(ledger, "wf-00001", 2 * DAY)
    assert await due(ledger, Retention(DAY)) == {"wf-child"}


async def test_what_went_on_after_a_deletion_expires_again(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await _age(ledger, "wf-00001", 2 * DAY)
    await ledger.delete_content(TENANT, "wf-00001")
    assert await due(ledger, Retention(DAY)) == set()
    await chain(ledger, "wf-00001", "st-00001")
    operation = Operation(
        lambda connection: connection.execute(text("UPDATE workflows SET content_deleted_at = 1"))
    )
    await ledger.database.write(operation)
    await _age(ledger, "wf-00001", 2 * DAY)
    assert await due(ledger, Retention(DAY)) == {"wf-00001"}


async def test_a_fork_whose_shared_steps_were_deleted_still_expires(ledger: SqlLedger) -> None:
    fork = fork_of(workflow(), "wf-fork", "st-00001")
    await ledger.create_workflow(workflow(), "hash")
    await chain(ledger, "wf-00001", "st-00001")
    await ledger.create_workflow(fork, "hash")
    await chain(ledger, "wf-fork", "st-fork", parent="st-00001")
    for name in ("wf-00001", "wf-fork"):
        await _age(ledger, name, 2 * DAY)
    await ledger.delete_content(TENANT, "wf-00001")
    assert await due(ledger, Retention(DAY)) == {"wf-fork"}
    await ledger.delete_content(TENANT, "wf-00001")
    assert await due(ledger, Retention(DAY)) == {"wf-fork"}
    await ledger.delete_content(TENANT, "wf-fork")
    await ledger.delete_content(TENANT, "wf-00001")
    assert await due(ledger, Retention(DAY)) == set()


async def test_what_is_due_is_found_by_indexes(ledger: SqlLedger) -> None:
    if ledger.database.name.startswith("postgres"):
        return  # a small table is always scanned there
    plans: list[str] = []

    def note(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.startswith("EXPLAIN"):
            rows = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(str(row[3]) for row in rows)

    event.listen(ledger.database._read_engine, "before_cursor_execute", note)
    await ledger.expired(Retention(DAY), 10)
    await ledger.deleted_since(NOW)
    assert sum("ix_workflows_own_time" in plan for plan in plans) == 2
    assert sum("ix_workflows_stored" in plan for plan in plans) == 1
    assert not [plan for plan in plans if plan in {"SCAN workflows", "SCAN steps"}]


async def test_no_byte_of_it_is_left_in_the_file(sqlite_url: str) -> None:
    """Neither in pages that are free now, nor where a row stood before it grew."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    ledger = await SqlLedger.open(sqlite_url, write_timeout=10, holder="rt-test")
    marker, packed = f"{SECRET} " * 400, ids(*range(70_001, 75_001))
    await ledger.create_workflow(replace(workflow(), system=marker, tools=(Tool("bash", marker),)), "hash")
    for number in range(3):
        said = replace(step(f"st-0000{number}"), input=(Message(Role.USER, marker),), system=marker)
        await ledger.open_step(said, attempt(said))
        end = finished(attempt(said))
        assert end.segments
        segments = replace(end.segments, rendered=packed, generated=packed)
        await ledger.close_attempt(replace(end, output=Message(Role.ASSISTANT, marker), segments=segments))
    _checkpoint(sqlite_url)
    full = path.read_bytes()
    assert SECRET.encode() in full
    assert packed[:64] in full
    await ledger.delete_content(TENANT, "wf-00001")
    await ledger.close()
    _checkpoint(sqlite_url)
    for file in path.parent.iterdir():
        left = file.read_bytes()
        assert SECRET.encode() not in left, file
        assert packed[:64] not in left, file


def _checkpoint(url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()


async def test_another_process_is_noticed_once(sqlite_url: str) -> None:
    """As the command line deletes beside a runtime."""
    ledger = await SqlLedger.open(sqlite_url, write_timeout=10, holder="rt-test")
    other = await SqlLedger.open(sqlite_url, write_timeout=10)
    told: list[Mapping[tuple[str, str], datetime]] = []
    turns = Turns()
    work = Deletion(ledger, turns, [told.append], Retention(DAY))
    for name in ("wf-00001", "wf-00002"):
        await ledger.create_workflow(workflow(name), "hash")
        await _age(ledger, name, 2 * DAY)
    await other.delete_content(TENANT, "wf-00001")
    async with turns.take(turn_of(TENANT, "wf-00002")):
        with pytest.raises(WorkflowBusy):
            await work.delete(TENANT, "wf-00002")
        assert await work.delete_expired() == 0
    assert await work.delete_expired() == 1
    assert await work.delete_expired() == 0
    await ledger.close()
    await other.close()
    assert [{workflow_id for _, workflow_id in one} for one in told] == [{"wf-00001"}, {"wf-00002"}]
    (at,) = told[0].values()
    assert at.tzinfo is UTC
