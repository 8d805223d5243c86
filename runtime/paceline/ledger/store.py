"""`SqlLedger`: the `Ledger` of the use case on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from paceline.ledger import attempts, deletion, found, reads, runtimes, workflows
from paceline.ledger.database import Database
from paceline.ledger.rows import to_microseconds
from paceline.workflow.chain import ChainLink
from paceline.workflow.model import Outcome, Page, Step, StepState, Workflow
from paceline.workflow.ports import (
    Answered,
    AttemptCheckpoint,
    AttemptEnd,
    Deleted,
    Expired,
    NewAttempt,
    Retention,
    Unanswered,
    WorkflowFilter,
)


class SqlLedger:
    """Durable workflows, steps and attempts; see `paceline.workflow.ports.Ledger` for what each method does.

    Writes of one process happen in the order of the calls. A caller that is cancelled while it waits does not take
    its write back. `database` serves the other readers and writers of the same tables.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    async def open(cls, url: str, *, write_timeout: float, holder: str = "") -> SqlLedger:
        """Open an existing database; `write_timeout` in seconds. A runtime gives its id as `holder` and so has a
        SQLite file to itself; tools that only look or set an outcome leave it empty.

        Raises `ConfigError` (bad URL), `LedgerInUse`, `SchemaOutdated` (run `paceline db upgrade`) or
        `LedgerUnavailable`.
        """
        return cls(await Database.open(url, timeout=write_timeout, holder=holder))

    async def close(self) -> None:
        """Commit what waits, close the connections and give the file lock back."""
        await self.database.close()

    async def create_workflow(self, workflow: Workflow, request_hash: str) -> Workflow:
        """Insert a workflow, or return the one that the same request created."""
        return await self.database.write(workflows.create(workflow, request_hash))

    async def get_workflow(self, tenant: str, workflow_id: str) -> Workflow:
        """Return one workflow."""
        return await self.database.read(partial(reads.get_workflow, tenant=tenant, workflow_id=workflow_id))

    async def workflow_for(self, tenant: str, workflow_id: str, request_id: str) -> Workflow | None:
        """Return the workflow of a new request, if it is one."""
        return await self.database.read(
            partial(reads.workflow_for, tenant=tenant, workflow_id=workflow_id, request_id=request_id)
        )

    async def find_workflows(self, workflow_id: str) -> list[Workflow]:
        """Return the workflows with this id, of any tenant: for the operator's own tools."""
        return await self.database.read(partial(reads.find_workflows, workflow_id=workflow_id))

    async def counts(self) -> dict[str, int]:
        """Return how many workflows, steps and attempts there are."""
        return await self.database.read(reads.counts)

    async def list_workflows(
        self, tenant: str, where: WorkflowFilter, page_size: int, page_token: str
    ) -> Page[Workflow]:
        """Return a page of workflows, newest first."""
        return await self.database.read(
            partial(reads.list_workflows, tenant=tenant, where=where, page_size=page_size, page_token=page_token)
        )

    async def finish_workflow(self, tenant: str, workflow_id: str, outcome: Outcome) -> Workflow:
        """Set or correct the outcome. The same outcome again changes nothing."""
        return await self.database.write(workflows.finish(tenant, workflow_id, outcome))

    async def delete_content(self, tenant: str, workflow_id: str, unchanged_since: datetime | None = None) -> None:
        """Delete the content of a workflow, in several transactions if it has many steps."""
        since = to_microseconds(unchanged_since) if unchanged_since else None
        while not await self.database.write(deletion.delete_content(tenant, workflow_id, since)):
            continue

    async def deleted_since(self, moment: datetime) -> list[Deleted]:
        """Return the workflows whose content was deleted since."""
        return await self.database.read(partial(deletion.deleted_since, moment=moment))

    async def expired(self, retention: Retention, most: int) -> list[Expired]:
        """Return workflows whose content is to be deleted now."""
        return await self.database.read(partial(deletion.expired, retention=retention, most=most))

    async def find_step(self, tenant: str, request_id: str) -> Step | None:
        """Return the step of an idempotency key, if any."""
        return await self.database.read(partial(reads.find_step, tenant=tenant, request_id=request_id))

    async def get_step(self, tenant: str, step_id: str) -> Step:
        """Return one step."""
        return await self.database.read(partial(reads.get_step, tenant=tenant, step_id=step_id))

    async def list_steps(self, tenant: str, workflow_id: str, page_size: int, page_token: str) -> Page[Step]:
        """Return a page of a workflow's own steps, oldest first."""
        return await self.database.read(
            partial(
                reads.list_steps,
                tenant=tenant,
                workflow_id=workflow_id,
                page_size=page_size,
                page_token=page_token,
            )
        )

    async def load_chain(self, tenant: str, step_id: str) -> list[Step]:
        """Return a step and its ancestors, root first, across forks."""
        return await self.database.read(partial(reads.load_chain, tenant=tenant, step_id=step_id))

    async def load_links(self, tenant: str, step_id: str) -> list[ChainLink]:
        """Return the same chain without its texts."""
        return await self.database.read(partial(reads.load_links, tenant=tenant, step_id=step_id))

    async def is_ancestor(self, tenant: str, step_id: str, of: str) -> bool:
        """Return whether a step is `of` or one of its ancestors, across forks."""
        return await self.database.read(partial(reads.is_ancestor, tenant=tenant, step_id=step_id, of=of))

    async def find_answered(self, tenant: str, hashes: Sequence[bytes]) -> list[Answered]:
        """Return the finished steps with the first of these chain hashes that any has."""
        return await self.database.read(partial(found.find_answered, tenant=tenant, hashes=hashes))

    async def find_unanswered(self, tenant: str, chain_hash: bytes) -> list[Unanswered]:
        """Return the failed and cancelled steps with this chain hash."""
        return await self.database.read(partial(found.find_unanswered, tenant=tenant, chain_hash=chain_hash))

    async def open_step(self, step: Step, attempt: NewAttempt | None) -> None:
        """Insert a step, with its first attempt if it has one."""
        await self.database.write(attempts.open_step(step, attempt))

    async def open_attempt(self, attempt: NewAttempt) -> None:
        """Insert an attempt for a known step. `WorkflowBusy`: the step runs or is finished already."""
        await self.database.write(attempts.open_attempt(attempt))

    async def requeue_step(self, step: Step) -> bool:
        """Take over an ended step; False if another caller took it."""
        return await self.database.write(attempts.requeue_step(step))

    async def close_attempt(self, end: AttemptEnd) -> None:
        """Close an attempt and its step together."""
        await self.database.write(attempts.close_attempt(end))

    async def close_queued(self, step_id: str, state: StepState, error_reason: str, error_message: str) -> None:
        """Close a step that never got an attempt."""
        await self.database.write(attempts.close_queued(step_id, state, error_reason, error_message))

    async def checkpoint(self, checkpoints: list[AttemptCheckpoint]) -> None:
        """Note the progress of running attempts."""
        await self.database.write(attempts.checkpoint(checkpoints))

    async def register_runtime(self, runtime_id: str, host: str, pid: int, lease_seconds: float) -> None:
        """Insert this runtime with its lease."""
        await self.database.write(runtimes.register(runtime_id, host, pid, lease_seconds))

    async def renew_lease(self, runtime_id: str, lease_seconds: float) -> None:
        """Extend this runtime's lease."""
        await self.database.write(runtimes.renew(runtime_id, lease_seconds))

    async def close_orphans(self, runtime_id: str) -> int:
        """Close what dead runtimes left; returns how many attempts and waiting steps."""
        return await self.database.write(runtimes.close_orphans(runtime_id, alone=self.database.alone))

    async def close_idle(self, idle_seconds: float) -> int:
        """Close workflows without activity for so long as unknown; returns how many."""
        total = 0
        while closed := await self.database.write(workflows.close_idle(idle_seconds)):
            total += closed
        return total
