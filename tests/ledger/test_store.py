"""The store on both databases: what goes in comes out, and what must be refused is."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection, select
from tests.ledger.rows import COST, NOW, TENANT, USAGE, attempt, failed, finished, run_step, step, workflow

from paceline.errors import (
    BudgetExceeded,
    InvalidArgument,
    RequestIdReused,
    StepNotFound,
    WorkflowBusy,
    WorkflowExists,
    WorkflowFinished,
    WorkflowNotFound,
)
from paceline.ledger.store import SqlLedger
from paceline.ledger.tables import attempts, outcome_changes, workflows
from paceline.workflow.model import (
    Budget,
    Cost,
    Outcome,
    OutcomeKind,
    OutcomeSource,
    Speculation,
    StepState,
    Usage,
    UsageSource,
)
from paceline.workflow.ports import AttemptCheckpoint, NewAttempt, Reservation, WorkflowFilter

SUCCEEDED = Outcome(OutcomeKind.SUCCEEDED, OutcomeSource.CHECK_COMMAND, 0, "pytest")
TOO_LARGE = base64.urlsafe_b64encode(b'[99999999999999999999,"wf-00001"]').decode()


async def balance(ledger: SqlLedger, workflow_id: str = "wf-00001") -> tuple[int, ...]:
    """Spent list cost, tokens and steps, then reserved list cost and tokens."""
    w = workflows.c
    columns = (w.spent_list_nanos, w.spent_tokens, w.spent_steps, w.reserved_list_nanos, w.reserved_tokens)
    statement = select(*columns).where(w.workflow_id == workflow_id)
    return await ledger.database.read(lambda connection: tuple(connection.execute(statement).one()))


async def test_a_workflow_comes_back_as_it_went_in(ledger: SqlLedger) -> None:
    new = workflow(labels={"team": "a", "repo": "x"}, budget=Budget(10, 20, 30))
    assert await ledger.create_workflow(new, "hash") == new
    assert await ledger.get_workflow(TENANT, new.workflow_id) == new


async def test_creating_again_is_idempotent_by_hash(ledger: SqlLedger) -> None:
    first = await ledger.create_workflow(workflow(), "hash")
    assert await ledger.create_workflow(replace(workflow(), created_at=None), "hash") == first
    with pytest.raises(WorkflowExists, match="wf-00001 exists"):
        await ledger.create_workflow(workflow(), "other")


async def test_a_parent_has_to_exist_in_the_same_tenant(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow("wf-parent", tenant="other"), "hash")
    with pytest.raises(WorkflowNotFound, match="wf-parent"):
        await ledger.create_workflow(workflow(parent="wf-parent"), "hash")


async def test_tenants_do_not_see_each_other(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await ledger.create_workflow(workflow(tenant="other"), "another hash")
    await run_step(ledger, step())
    with pytest.raises(WorkflowNotFound):
        await ledger.get_workflow("third", "wf-00001")
    with pytest.raises(WorkflowNotFound):
        await ledger.finish_workflow("third", "wf-00001", SUCCEEDED)
    for read in (ledger.get_step, ledger.load_chain):
        with pytest.raises(StepNotFound):
            await read("other", "st-00001")
    assert await ledger.find_step("other", "rq-st-00001") is None
    assert (await ledger.list_steps("other", "wf-00001", 10, "")).items == []


async def test_workflows_are_listed_newest_first_in_pages(ledger: SqlLedger) -> None:
    for number in range(5):
        labels = {"team": "even" if number % 2 == 0 else "odd"}
        moment = NOW + timedelta(seconds=number // 2)  # some at the same time
        await ledger.create_workflow(workflow(f"wf-0000{number}", labels=labels, created_at=moment), "hash")
    await ledger.finish_workflow(TENANT, "wf-00002", SUCCEEDED)

    async def pages(where: WorkflowFilter) -> list[list[str]]:
        found, token = [], ""
        while True:
            page = await ledger.list_workflows(TENANT, where, 2, token)
            found.append([item.workflow_id for item in page.items])
            token = page.next_token
            if not token:
                return found

    assert await pages(WorkflowFilter()) == [["wf-00004", "wf-00003"], ["wf-00002", "wf-00001"], ["wf-00000"]]
    assert await pages(WorkflowFilter({"team": "even"})) == [["wf-00004", "wf-00002"], ["wf-00000"]]
    assert await pages(WorkflowFilter({"team": "even"}, open_only=True)) == [["wf-00004", "wf-00000"]]


@pytest.mark.parametrize("token", ["x", "!!!!", "WzFd", "eyJhIjoxfQ==", TOO_LARGE])
async def test_a_page_token_of_another_list_is_refused(ledger: SqlLedger, token: str) -> None:
    with pytest.raises(InvalidArgument, match="page_token"):
        await ledger.list_workflows(TENANT, WorkflowFilter(), 2, token)


async def test_outcomes_can_be_corrected_and_every_change_is_kept(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    late = Outcome(OutcomeKind.FAILED, OutcomeSource.PERSON, None, "reverted")
    first = await ledger.finish_workflow(TENANT, "wf-00001", SUCCEEDED)
    assert first.outcome == replace(SUCCEEDED, set_at=first.updated_at)
    assert await ledger.finish_workflow(TENANT, "wf-00001", SUCCEEDED) == first
    assert (await ledger.finish_workflow(TENANT, "wf-00001", late)).outcome is not None

    changes = select(outcome_changes).order_by(outcome_changes.c.change_id)
    rows = await ledger.database.read(lambda connection: connection.execute(changes).all())
    assert [(row.old_kind, row.kind, row.source, row.exit_code, row.note) for row in rows] == [
        (None, "succeeded", "check_command", 0, "pytest"),
        ("succeeded", "failed", "person", None, "reverted"),
    ]


async def test_a_new_request_finds_its_workflow(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    stored = await ledger.get_workflow(TENANT, "wf-00001")
    assert await ledger.workflow_for(TENANT, "wf-00001", "rq-st-00001") == stored
    await run_step(ledger, step())
    assert await ledger.workflow_for(TENANT, "wf-00001", "rq-st-00001") is None
    assert await ledger.workflow_for(TENANT, "wf-00002", "rq-st-00002") is None
    assert await ledger.workflow_for("other", "wf-00001", "rq-st-00002") is None


async def test_a_finished_step_comes_back_as_it_went_in(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    new = step()
    await ledger.open_step(new, attempt(new))
    running = await ledger.get_step(TENANT, new.step_id)
    assert (running.state, running.replica, running.usage) == (StepState.RUNNING, "replica-1", Usage())

    end = finished(attempt(new))
    await ledger.close_attempt(end)
    stored = await ledger.find_step(TENANT, new.request_id)
    assert stored == replace(
        new,
        state=StepState.FINISHED,
        output=end.output,
        malformed_tool_calls=1,
        segments=end.segments,
        finish_reason=end.finish_reason,
        usage=USAGE,
        reuse=end.reuse,
        speculation=end.speculation,
        step_class="tool call",
        timings=end.timings,
        cost=COST,
        attempt_count=1,
        replica="replica-1",
        ended_at=NOW,
    )
    moved = await ledger.get_workflow(TENANT, new.workflow_id)
    assert (moved.head_step_id, moved.replica) == (new.step_id, "replica-1")
    assert await balance(ledger) == (1_000, 1_050, 1, 0, 0)


async def test_a_failed_step_moves_no_head_and_runs_again_under_its_id(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    new = step()
    end = failed(attempt(new), usage=Usage(uncached_prompt=1000, output=7), cost=Cost(300))
    await run_step(ledger, new, end)
    stored = await ledger.get_step(TENANT, new.step_id)
    assert (stored.state, stored.error_reason, stored.usage.output) == (StepState.FAILED, "ENGINE_LOST", 7)
    assert (await ledger.get_workflow(TENANT, new.workflow_id)).head_step_id is None
    assert await balance(ledger) == (300, 1_007, 1, 0, 0)

    other = replace(new, runtime_id="rt-other", system="You write programs.")
    assert await ledger.requeue_step(other)
    assert await ledger.requeue_step(other)  # as after a commit whose answer was lost
    assert not await ledger.requeue_step(replace(new, runtime_id="rt-third"))
    again = attempt(new, 2, runtime_id="rt-other")
    await ledger.open_attempt(again)
    await ledger.close_attempt(finished(again))
    stored = await ledger.get_step(TENANT, new.step_id)
    assert (stored.state, stored.error_reason, stored.attempt_count) == (StepState.FINISHED, "", 2)
    assert (stored.runtime_id, stored.usage) == ("rt-other", USAGE)
    assert (stored.system, stored.tools) == ("You write programs.", new.tools)
    assert await balance(ledger) == (1_300, 2_057, 1, 0, 0)


async def test_closing_again_changes_nothing(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await run_step(ledger, step())
    before = await ledger.get_step(TENANT, "st-00001"), await balance(ledger)
    await ledger.close_attempt(finished(attempt(step())))
    assert (await ledger.get_step(TENANT, "st-00001"), await balance(ledger)) == before


async def test_a_finished_step_does_not_run_again(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await run_step(ledger, step())
    assert not await ledger.requeue_step(step())
    with pytest.raises(WorkflowBusy, match="finished already"):
        await ledger.open_attempt(attempt(step(), 2))


async def test_opening_twice_counts_once(ledger: SqlLedger) -> None:
    """The writer runs an operation again when the connection broke before it heard of the commit."""
    await ledger.create_workflow(workflow(), "hash")
    new = step()
    for _ in range(2):
        await ledger.open_step(new, attempt(new))
    assert await balance(ledger) == (0, 0, 1, 5_000, 2_000)
    await ledger.close_attempt(failed(attempt(new)))
    for _ in range(2):
        await ledger.open_attempt(attempt(new, 2))
    assert await balance(ledger) == (0, 0, 1, 5_000, 2_000)


async def test_a_queued_step_gets_its_attempt_or_is_closed(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    one, two = step("st-00001"), step("st-00002")
    for new in (one, two):
        await ledger.open_step(new, None)
    assert (await ledger.get_step(TENANT, "st-00001")).state is StepState.QUEUED
    await ledger.open_attempt(attempt(one))
    await ledger.close_queued("st-00001", StepState.CANCELLED, "STEP_CANCELLED", "too late")
    await ledger.close_queued("st-00002", StepState.CANCELLED, "STEP_CANCELLED", "cancelled")
    states = [(await ledger.get_step(TENANT, new.step_id)).state for new in (one, two)]
    assert states == [StepState.RUNNING, StepState.CANCELLED]
    assert (await ledger.get_step(TENANT, "st-00002")).error_reason == "STEP_CANCELLED"
    with pytest.raises(StepNotFound):
        await ledger.close_queued("st-00003", StepState.CANCELLED, "STEP_CANCELLED", "")


async def test_what_cannot_be_opened_leaves_nothing(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    new = step()
    await ledger.open_step(new, attempt(new))
    same_request = step("st-00002", request_id=new.request_id)
    with pytest.raises(RequestIdReused, match="belongs to step st-00001"):
        await ledger.open_step(same_request, attempt(same_request))
    orphan = step("st-00003", parent="st-nobody")
    with pytest.raises(StepNotFound, match="st-nobody"):
        await ledger.open_step(orphan, attempt(orphan))
    lost = step("st-00004", workflow_id="wf-nobody")
    with pytest.raises(WorkflowNotFound, match="wf-nobody"):
        await ledger.open_step(lost, attempt(lost))
    with pytest.raises(StepNotFound, match="st-00005"):
        await ledger.open_attempt(attempt(step("st-00005")))
    with pytest.raises(StepNotFound, match="never opened"):
        await ledger.close_attempt(finished(attempt(step("st-00005"))))
    assert await balance(ledger) == (0, 0, 1, 5_000, 2_000)
    assert len((await ledger.list_steps(TENANT, "wf-00001", 10, "")).items) == 1


async def test_a_finished_workflow_takes_no_step(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await run_step(ledger, step(), failed(attempt(step())))
    await ledger.finish_workflow(TENANT, "wf-00001", SUCCEEDED)
    with pytest.raises(WorkflowFinished, match=r"finished \(succeeded\); fork it"):
        await ledger.open_step(step("st-00002"), None)
    assert await ledger.requeue_step(step())
    with pytest.raises(WorkflowFinished):
        await ledger.open_attempt(attempt(step(), 2))
    assert (await ledger.get_step(TENANT, "st-00001")).state is StepState.QUEUED


@pytest.mark.parametrize(
    ("budget", "kind", "limit"),
    [
        (Budget(list_nanos=12_499), "list_nanos", 12_499),
        (Budget(tokens=4_999), "tokens", 4_999),
        (Budget(steps=2), "steps", 2),
    ],
)
async def test_a_step_that_does_not_fit_the_budget_is_refused(
    ledger: SqlLedger, budget: Budget, kind: str, limit: int
) -> None:
    """Two steps fit, one spent and one reserved; the third's worst case is one too many."""
    await ledger.create_workflow(workflow(budget=budget), "hash")
    spent = finished(attempt(step("st-00001")), usage=Usage(900, 50, output=50), cost=Cost(2_500))
    await run_step(ledger, step("st-00001"), spent)
    await ledger.open_step(step("st-00002"), attempt(step("st-00002")))
    third = step("st-00003")
    with pytest.raises(BudgetExceeded, match=f"budget of {limit} {kind}") as refused:
        await ledger.open_step(third, attempt(third))
    assert refused.value.metadata["budget"] == kind
    assert refused.value.metadata["limit"] == str(limit)
    await ledger.close_attempt(failed(attempt(step("st-00002"))))  # gives its reservation back
    if kind != "steps":
        await ledger.open_step(third, attempt(third))


async def test_concurrent_steps_never_overshoot_a_budget(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(budget=Budget(list_nanos=50_000)), "hash")

    async def try_one(number: int) -> bool:
        new = step(f"st-{number:05}")
        try:
            await ledger.open_step(new, attempt(new, reservation=Reservation(5_000, 10)))
        except BudgetExceeded:
            return False
        return True

    opened = await asyncio.gather(*(try_one(number) for number in range(64)))
    assert sum(opened) == 10
    assert await balance(ledger) == (0, 0, 10, 50_000, 100)


async def test_steps_are_listed_oldest_first_in_pages(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    for number in (3, 1, 2):
        await run_step(ledger, step(f"st-0000{number}", created_at=NOW + timedelta(seconds=number)))
    first = await ledger.list_steps(TENANT, "wf-00001", 2, "")
    rest = await ledger.list_steps(TENANT, "wf-00001", 2, first.next_token)
    assert [item.step_id for item in (*first.items, *rest.items)] == ["st-00001", "st-00002", "st-00003"]
    assert rest.next_token == ""


async def test_checkpoints_are_kept_until_the_end_replaces_them(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    new = step()
    first = attempt(new)
    await ledger.open_step(new, first)
    known = Usage(1000, None, output=12, prompt_source=UsageSource.PREDICTED, output_source=UsageSource.STREAM)
    await ledger.checkpoint([AttemptCheckpoint(first.attempt_id, known, Speculation("ngram", 3, 2), Cost(77))])
    running = await ledger.get_step(TENANT, new.step_id)
    assert running.usage == replace(
        known, prompt_source=UsageSource.CHECKPOINT, output_source=UsageSource.CHECKPOINT
    )
    assert running.cost == Cost(77)
    await ledger.close_attempt(finished(first))
    await ledger.checkpoint([AttemptCheckpoint(first.attempt_id, known, Speculation(), Cost(77))])
    await ledger.checkpoint([])
    assert (await ledger.get_step(TENANT, new.step_id)).usage == USAGE


async def test_idle_workflows_are_closed_as_unknown(ledger: SqlLedger) -> None:
    for new in (workflow("wf-idle0"), workflow("wf-busy0"), replace(workflow("wf-young"), created_at=None)):
        await ledger.create_workflow(new, "hash")
    await ledger.open_step(step(workflow_id="wf-busy0"), None)
    assert await ledger.close_idle(3600) == 1
    closed = await ledger.get_workflow(TENANT, "wf-idle0")
    assert closed.outcome is not None
    assert (closed.outcome.kind, closed.outcome.source) == (OutcomeKind.UNKNOWN, OutcomeSource.RUNTIME)
    assert (await ledger.get_workflow(TENANT, "wf-busy0")).outcome is None
    assert (await ledger.get_workflow(TENANT, "wf-young")).outcome is None


async def test_every_fact_of_an_attempt_is_a_column(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await run_step(ledger, step())
    row = await ledger.database.read(_only_attempt)
    assert row.pop("mean_acceptance_length") == pytest.approx(2.5)
    assert {key for key, value in row.items() if value is None} == {
        *("checkpointed_at", "pool_choice", "pool_saving_us", "pool_prefill_us")
    }
    assert (row["draft_steps"], row["step_class"]) == (20, "tool call")
    assert row["queue_us"], row["accelerator_us"] == (500_000, 1_750_000)
    assert (row["total_us"], row["prompt_source"], row["example_price"]) == (2_250_000, "engine", True)


def _only_attempt(connection: Connection) -> dict[str, object]:
    return dict(connection.execute(select(attempts)).mappings().one())


async def test_a_cancelled_caller_does_not_take_its_write_back(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    new = step()
    first: NewAttempt = attempt(new)
    task = asyncio.create_task(ledger.open_step(new, first))
    await asyncio.sleep(0)
    task.cancel()
    await ledger.close_attempt(failed(first))
    assert (await ledger.get_step(TENANT, new.step_id)).state is StepState.FAILED
