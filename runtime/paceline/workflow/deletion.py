"""Deletes what a workflow said and was told: when somebody asks, and when it was kept long enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from paceline.errors import WorkflowBusy
from paceline.workflow.attempt import utcnow
from paceline.workflow.model import Workflow
from paceline.workflow.ports import Deleted, Ledger, Retention
from paceline.workflow.turns import Turns, turn_of

AT_ONCE, MOST = 100, 5000
OVERLAP = timedelta(minutes=5)
"""Deletions are looked for so far back: clocks differ, and commits come late."""

Forget = Callable[[Mapping[tuple[str, str], datetime]], None]
"""Takes tenant and workflow of deletions, and when the ledger says that they were."""


class Deletion:
    """Deletes texts and token ids of workflows; counts, hashes and costs stay. Each of `forget` is told of
    deletions, also of those by other processes, and drops what is in memory."""

    def __init__(self, ledger: Ledger, turns: Turns, forget: Sequence[Forget], retention: Retention) -> None:
        self._ledger = ledger
        self._turns = turns
        self._forget = forget
        self._retention = retention
        self._noticed = utcnow()
        self._known: frozenset[Deleted] = frozenset()

    async def delete(self, tenant: str, workflow_id: str) -> Workflow:
        """Delete the content of one workflow. Raises `WorkflowNotFound`, and `WorkflowBusy` while a step runs."""
        await self._delete(tenant, workflow_id, None)
        await self.notice()
        return await self._ledger.get_workflow(tenant, workflow_id)

    async def delete_expired(self) -> int:
        """Delete what was kept long enough, of at most `MOST` workflows; returns how many. Busy ones and the rest
        are left for the next time."""
        total = 0
        while total < MOST:
            deleted = 0
            for tenant, workflow_id, updated_at in await self._ledger.expired(self._retention, AT_ONCE):
                with suppress(WorkflowBusy):
                    await self._delete(tenant, workflow_id, updated_at)
                    deleted += 1
            total += deleted
            if not deleted:
                break
        await self.notice()
        return total

    async def notice(self) -> None:
        """Drop from memory what was deleted since the last time."""
        before, self._noticed = self._noticed, utcnow()
        found = frozenset(await self._ledger.deleted_since(before - OVERLAP))
        fresh = {(tenant, workflow_id): at for tenant, workflow_id, at in found - self._known}
        self._known = found
        for forget in self._forget if fresh else ():
            forget(fresh)

    async def _delete(self, tenant: str, workflow_id: str, unchanged_since: datetime | None) -> None:
        turn = turn_of(tenant, workflow_id)
        if self._turns.busy(turn):
            raise WorkflowBusy(
                f"workflow {workflow_id} is running a step; delete its content when that has ended",
                workflow_id=workflow_id,
            )
        async with self._turns.take(turn):
            await self._ledger.delete_content(tenant, workflow_id, unchanged_since)
