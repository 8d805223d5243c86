"""The use cases as their callers see them. Errors: any class of `paceline.errors`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from paceline.workflow.commands import CreateWorkflow, ForkWorkflow, RunStep
from paceline.workflow.costs import CostFilter, CostSummary
from paceline.workflow.events import Event
from paceline.workflow.model import Outcome, Page, Step, Workflow
from paceline.workflow.ports import WorkflowFilter


class StepUseCase(Protocol):
    """Runs and finds steps."""

    def run(self, command: RunStep) -> AsyncGenerator[Event, None]:
        """Stream the events of one step: first `Started`, last `Finished`. Closing the generator says that this
        reader is gone; it returns once the step knows."""
        ...

    async def cancel(self, tenant: str, *, step_id: str = "", request_id: str = "") -> Step:
        """Abort a running step and return it ended. Exactly one id is given."""
        ...

    async def get(self, tenant: str, *, step_id: str = "", request_id: str = "") -> Step:
        """Return one step. Exactly one id is given."""
        ...

    async def list(self, tenant: str, workflow_id: str, page_size: int, page_token: str) -> Page[Step]:
        """Return the steps of a workflow, oldest first."""
        ...


class WorkflowUseCase(Protocol):
    """Creates, finds and closes workflows."""

    async def create(self, command: CreateWorkflow) -> Workflow:
        """Create a workflow, or return the one that the same request created."""
        ...

    async def get(self, tenant: str, workflow_id: str) -> Workflow:
        """Return one workflow."""
        ...

    async def list(self, tenant: str, where: WorkflowFilter, page_size: int, page_token: str) -> Page[Workflow]:
        """Return workflows, newest first."""
        ...

    async def finish(self, tenant: str, workflow_id: str, outcome: Outcome) -> Workflow:
        """Set the outcome, or correct it."""
        ...

    async def fork(self, command: ForkWorkflow) -> Workflow:
        """Make a new workflow that shares the transcript up to one step."""
        ...

    async def delete_content(self, tenant: str, workflow_id: str) -> Workflow:
        """Delete the texts and token ids of a workflow for good."""
        ...


class CostReader(Protocol):
    """Says what workflows cost."""

    async def workflow_cost(self, tenant: str, workflow_id: str, *, include_children: bool) -> CostSummary:
        """Return the sums of one workflow."""
        ...

    async def query(
        self, tenant: str, group_by: tuple[str, ...], where: CostFilter, page_size: int, page_token: str
    ) -> Page[CostSummary]:
        """Return the sums of each group, ordered by the group's values."""
        ...
