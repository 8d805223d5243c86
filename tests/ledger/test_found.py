"""Steps that are found by the hash of their conversation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.ledger.rows import NOW, TENANT, attempt, failed, finished, run_step, step, workflow

from paceline.ledger import found
from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Outcome, OutcomeKind, OutcomeSource, Step, WorkflowMatch
from paceline.workflow.ports import Answered, Unanswered

ASKED, ANSWERED, ASKED_AGAIN, ANSWERED_AGAIN = (bytes([number]) * 16 for number in range(4))


def found_step(number: int, *, chain_hash: bytes = ASKED, **fields: Any) -> Step:
    """A step of a client that named no workflow, a second later than the one before."""
    one = step(f"st-{number:05}", created_at=NOW + timedelta(seconds=number), **fields)
    return replace(one, chain_hash=chain_hash, match=WorkflowMatch.EXACT)


async def answer(ledger: SqlLedger, one: Step, chain_hash: bytes = ANSWERED) -> None:
    await run_step(ledger, one, replace(finished(attempt(one)), chain_hash=chain_hash))


async def fail(ledger: SqlLedger, one: Step) -> None:
    await run_step(ledger, one, failed(attempt(one)))


async def test_the_deepest_answer_is_found_with_what_became_of_it(ledger: SqlLedger) -> None:
    for name in ("wf-00001", "wf-00002"):
        await ledger.create_workflow(workflow(name), name)
    one, other = found_step(1), found_step(2, workflow_id="wf-00002")
    await answer(ledger, one)
    await answer(ledger, other)
    first, second = Answered("st-00001", "wf-00001", False, False), Answered("st-00002", "wf-00002", False, False)
    assert await ledger.find_answered(TENANT, [ANSWERED_AGAIN, ANSWERED, ASKED]) == [second, first]
    child = found_step(3, chain_hash=ASKED_AGAIN, parent="st-00001")
    await fail(ledger, child)
    assert await ledger.find_answered(TENANT, [ANSWERED]) == [second, first]
    running = found_step(4, chain_hash=ASKED_AGAIN, parent="st-00001")
    await ledger.open_step(running, attempt(running))
    assert await ledger.find_answered(TENANT, [ANSWERED]) == [second, replace(first, continued=True)]
    await ledger.close_attempt(replace(finished(attempt(running)), chain_hash=ANSWERED_AGAIN))
    assert await ledger.find_answered(TENANT, [ANSWERED]) == [second, replace(first, continued=True)]
    deepest = await ledger.find_answered(TENANT, [ANSWERED_AGAIN, ANSWERED])
    assert deepest == [Answered("st-00004", "wf-00001", False, False)]
    await ledger.finish_workflow(
        TENANT, "wf-00002", Outcome(OutcomeKind.SUCCEEDED, OutcomeSource.CLIENT, set_at=NOW)
    )
    assert (await ledger.find_answered(TENANT, [ANSWERED]))[0] == replace(second, closed=True)
    assert await ledger.find_answered("team-b", [ANSWERED]) == []
    assert await ledger.find_answered(TENANT, []) == []


async def test_a_step_whose_workflow_went_elsewhere_counts_as_continued(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await answer(ledger, found_step(1))
    await run_step(ledger, found_step(2, chain_hash=ASKED_AGAIN))  # its parent is none of them
    assert await ledger.find_answered(TENANT, [ANSWERED]) == [Answered("st-00001", "wf-00001", True, False)]


async def test_many_hashes_are_looked_for_in_parts(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await answer(ledger, found_step(1))
    hashes = [number.to_bytes(16) for number in range(1, 2 * found.MOST_HASHES)]
    assert [one.step_id for one in await ledger.find_answered(TENANT, [*hashes, ANSWERED])] == ["st-00001"]


async def test_a_failed_step_can_be_replaced_until_something_came_after_it(ledger: SqlLedger) -> None:
    await ledger.create_workflow(workflow(), "hash")
    await fail(ledger, found_step(1))
    await fail(ledger, found_step(2))
    rows = await ledger.find_unanswered(TENANT, ASKED)
    exact = WorkflowMatch.EXACT
    assert rows == [
        Unanswered(f"rq-st-0000{number}", "hash", "wf-00001", exact, "ENGINE_LOST", True) for number in (2, 1)
    ]
    later = found_step(3, chain_hash=ASKED_AGAIN)
    await ledger.open_step(later, attempt(later))
    assert [row.replaceable for row in await ledger.find_unanswered(TENANT, ASKED)] == [False, False]
    await ledger.close_attempt(failed(attempt(later)))
    assert [row.replaceable for row in await ledger.find_unanswered(TENANT, ASKED)] == [True, True]
    await ledger.finish_workflow(TENANT, "wf-00001", Outcome(OutcomeKind.FAILED, OutcomeSource.CLIENT, set_at=NOW))
    assert [row.replaceable for row in await ledger.find_unanswered(TENANT, ASKED)] == [False, False]
    assert await ledger.find_unanswered("team-b", ASKED) == []
    await ledger.delete_content(TENANT, "wf-00001")
    assert await ledger.find_unanswered(TENANT, ASKED) == []
