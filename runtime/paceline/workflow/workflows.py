"""The use cases around a workflow: create, find, fork, finish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from paceline.errors import InvalidArgument, ModelNotFound, StepNotFinished, StepNotFound, TranscriptGone
from paceline.workflow.attempt import utcnow
from paceline.workflow.commands import CreateWorkflow, ForkWorkflow
from paceline.workflow.deletion import Deletion
from paceline.workflow.identity import new_id, workflow_hash
from paceline.workflow.model import Outcome, Page, StepState, StorePolicy, Workflow
from paceline.workflow.ports import Ledger, WorkflowFilter
from paceline.workflow.storing import Unstored
from paceline.workflow.validation import (
    check_create,
    check_fork,
    check_id,
    check_labels,
    check_outcome,
    check_page,
)


class Workflows:
    """Creates, finds and closes workflows. `models` are the names that clients may choose; `ended` is told of each
    workflow that a client finishes, and must not block or raise."""

    def __init__(
        self,
        ledger: Ledger,
        models: Collection[str],
        deletion: Deletion,
        unstored: Unstored,
        ended: Callable[[Workflow], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._models = models
        self._deletion = deletion
        self._unstored = unstored
        self._ended = ended

    async def create(self, command: CreateWorkflow) -> Workflow:
        """Create a workflow; the same request under the same id returns the one that exists."""
        await asyncio.to_thread(check_create, command)  # tool schemas take milliseconds each
        if command.parent_workflow_id:
            await self._ledger.get_workflow(command.tenant, command.parent_workflow_id)
        return await self._make(self.planned(command), workflow_hash(command))

    async def _make(self, workflow: Workflow, request_hash: str) -> Workflow:
        made = await self._ledger.create_workflow(workflow, request_hash)
        self._unstored.keep(replace(workflow, workflow_id=made.workflow_id))
        return self._unstored.fill(made)

    def planned(self, command: CreateWorkflow) -> Workflow:
        """The workflow that a checked command makes, for the ledger to take."""
        now = utcnow()
        return Workflow(
            workflow_id=command.workflow_id or new_id("wf"),
            tenant=command.tenant,
            model=self.model_named(command.model),
            system=command.system,
            tools=command.tools,
            sampling=command.sampling,
            labels=command.labels,
            budget=command.budget,
            transcript_policy=command.transcript_policy,
            store=command.store,
            retention_seconds=command.retention_seconds,
            parent_workflow_id=command.parent_workflow_id or None,
            created_at=now,
            updated_at=now,
        )

    async def get(self, tenant: str, workflow_id: str) -> Workflow:
        """Return one workflow."""
        return self._unstored.fill(await self._ledger.get_workflow(tenant, workflow_id))

    async def list(self, tenant: str, where: WorkflowFilter, page_size: int, page_token: str) -> Page[Workflow]:
        """Workflows, newest first."""
        size = check_page(page_size, page_token)
        check_labels(where.labels)
        return await self._ledger.list_workflows(tenant, where, size, page_token)

    async def finish(self, tenant: str, workflow_id: str, outcome: Outcome) -> Workflow:
        """Set the outcome, or correct it; every earlier one is kept in the audit."""
        check_outcome(outcome)
        workflow = await self._ledger.finish_workflow(tenant, workflow_id, replace(outcome, set_at=utcnow()))
        self._ended(workflow)
        return workflow

    async def fork(self, command: ForkWorkflow) -> Workflow:
        """Make a new open workflow that continues a finished step; it shares the transcript and the placement."""
        check_fork(command)
        fork = await self.planned_fork(command)
        if fork.forked_step_id and fork.store is StorePolicy.FULL:
            await self._check_stored(fork.tenant, fork.forked_step_id)
        return await self._make(fork, workflow_hash(command))

    async def planned_fork(self, command: ForkWorkflow) -> Workflow:
        """The workflow that a checked fork makes, for the ledger to take."""
        source = self._unstored.fill(await self._ledger.get_workflow(command.tenant, command.workflow_id))
        step_id = command.step_id or source.head_step_id
        if step_id:
            await self._check_forkable(command.tenant, source, step_id)
        labels = {**source.labels, **command.labels}
        check_labels(labels)
        now = utcnow()
        return replace(
            source,
            workflow_id=command.new_workflow_id or new_id("wf"),
            labels=labels,
            parent_workflow_id=source.workflow_id,
            forked_step_id=step_id,
            head_step_id=step_id,
            outcome=None,
            created_at=now,
            updated_at=now,
        )

    async def delete_content(self, tenant: str, workflow_id: str) -> Workflow:
        """Delete the texts and token ids of a workflow for good; counts, hashes and costs stay."""
        check_id(workflow_id, "workflow_id")
        return await self._deletion.delete(tenant, workflow_id)

    async def _check_stored(self, tenant: str, step_id: str) -> None:
        if (await self._ledger.get_step(tenant, step_id)).gone:
            raise TranscriptGone(
                f"the content of step {step_id} is deleted; send the whole conversation in a new workflow",
                step_id=step_id,
            )

    async def _check_forkable(self, tenant: str, source: Workflow, step_id: str) -> None:
        step = await self._ledger.get_step(tenant, step_id)
        if step.workflow_id != source.workflow_id and step_id != source.head_step_id:
            head = source.head_step_id
            if not head or not await self._ledger.is_ancestor(tenant, step_id, of=head):
                raise StepNotFound(f"step {step_id} is not in workflow {source.workflow_id}", step_id=step_id)
        if step.state is not StepState.FINISHED:
            raise StepNotFinished(f"step {step_id} is {step.state} and cannot be forked at", step_id=step_id)

    def model_named(self, name: str) -> str:
        """The model that a client means. Raises `InvalidArgument` or `ModelNotFound`."""
        known = sorted(self._models)
        if name in self._models:
            return name
        if not name and len(known) == 1:
            return known[0]
        if not name:
            raise InvalidArgument(f"name one of the models: {', '.join(known)}", field="model")
        raise ModelNotFound(f"no model {name}; configured: {', '.join(known)}", model=name)
