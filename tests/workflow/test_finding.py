"""Who may continue a step that several want at once; what the ledger tells is given here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from paceline.errors import WorkflowNotFound
from paceline.transcript.volatile import VolatileBlocks
from paceline.workflow.commands import Conversation, CreateWorkflow, ForkWorkflow, RunStep
from paceline.workflow.finding import Finder, Found
from paceline.workflow.model import Message, Role, Workflow, WorkflowMatch
from paceline.workflow.ports import Answered, Unanswered

NEW, EXACT, AMBIGUOUS = WorkflowMatch.NEW, WorkflowMatch.EXACT, WorkflowMatch.AMBIGUOUS
ASK = RunStep(
    "t",
    "",
    "",
    Conversation((Message(Role.USER, "one"), Message(Role.ASSISTANT, "1"), Message(Role.USER, "two"))),
)
FREE = Answered("step-1", "workflow-1", continued=False, closed=False)
FAILED = Unanswered("request-1", "same", "workflow-1", NEW, "ENGINE_LOST", replaceable=True)


class Known:
    """The ledger and the workflows, as far as they are asked. A fork takes a moment."""

    def __init__(self, *answered: Answered, unanswered: Sequence[Unanswered] = ()) -> None:
        self.answered, self.unanswered = list(answered), list(unanswered)
        self.busy: set[str] = set()
        self.missing = False
        self.finder = Finder(
            cast("Any", self),
            cast("Any", self),
            VolatileBlocks(),
            lambda _, workflow_id: workflow_id in self.busy,
        )

    async def find_answered(self, tenant: str, hashes: Sequence[bytes]) -> list[Answered]:
        await asyncio.sleep(0)
        return self.answered

    async def find_unanswered(self, tenant: str, chain_hash: bytes) -> list[Unanswered]:
        return self.unanswered

    def model_named(self, name: str) -> str:
        return name or "m"

    def planned(self, command: CreateWorkflow) -> Workflow:
        return Workflow("new", command.tenant, "m", command.system)

    async def planned_fork(self, command: ForkWorkflow) -> Workflow:
        await asyncio.sleep(0)
        if self.missing:
            raise WorkflowNotFound
        return Workflow("fork", command.tenant, "m", forked_step_id=command.step_id)

    async def find(self, release: asyncio.Event | None = None) -> Found:
        """Find the workflow and hold it until `release`."""
        async with self.finder.find(ASK, await self.finder.chain(ASK)) as found:
            if release:
                await release.wait()
            return found

    async def matches(self, count: int) -> list[WorkflowMatch]:
        """What as many requests at once are told."""
        release = asyncio.Event()
        asked = [asyncio.create_task(self.find(release)) for _ in range(count)]
        await asyncio.sleep(0.01)
        release.set()
        return sorted(found.match for found in await asyncio.gather(*asked))


@pytest.mark.parametrize("closed", [False, True])
async def test_of_several_at_once_one_continues_the_step(closed: bool) -> None:
    known = Known(Answered("step-1", "workflow-1", continued=False, closed=closed))
    assert await known.matches(4) == [AMBIGUOUS] * 3 + [EXACT]
    found = await known.find()  # nothing continued it after all
    assert (found.match, found.made is not None) == (EXACT, closed)


async def test_a_workflow_that_runs_a_step_is_not_continued() -> None:
    known = Known(FREE)
    known.busy.add("workflow-1")
    found = await known.find()
    assert (found.match, found.workflow_id) == (AMBIGUOUS, "fork")


async def test_a_step_that_cannot_be_continued_after_all_is_given_back() -> None:
    known = Known(Answered("step-1", "workflow-1", continued=False, closed=True))
    known.missing = True
    with pytest.raises(WorkflowNotFound):
        await known.find()
    known.missing = False
    assert (await known.find()).match is EXACT


async def test_one_of_several_takes_the_place_of_a_step_without_an_answer() -> None:
    known = Known(unanswered=[FAILED])
    assert await known.matches(3) == [NEW, NEW, NEW]
    found = await known.find()
    assert (found.workflow_id, found.match, found.made) == ("workflow-1", NEW, None)
    known.busy.add("workflow-1")
    found = await known.find()
    assert (found.workflow_id, found.made is not None) == ("new", True)


async def test_only_the_same_request_that_may_run_again_is_a_retry() -> None:
    known = Known(unanswered=[FAILED])
    chain = await known.finder.chain(ASK)
    assert await known.finder.retried(ASK, chain, "same") == "request-1"
    assert await known.finder.retried(ASK, chain, "other") is None
    known.busy.add("workflow-1")
    assert await known.finder.retried(ASK, chain, "same") is None
    known.busy.clear()
    for reason, replaceable in (("STEP_CANCELLED", True), ("ENGINE_LOST", False)):
        known.unanswered = [Unanswered("request-1", "same", "workflow-1", NEW, reason, replaceable)]
        assert await known.finder.retried(ASK, chain, "same") is None


async def test_other_tenants_hold_nothing() -> None:
    known = Known(FREE)
    async with known.finder.find(ASK, await known.finder.chain(ASK)):
        other = RunStep("u", "", "", ASK.input)
        async with known.finder.find(other, await known.finder.chain(other)) as found:
            assert found.match is EXACT
