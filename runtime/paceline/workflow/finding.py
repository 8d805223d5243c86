"""Finds the workflow of a conversation whose client names none, by the hashes that steps leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from paceline.transcript.chainhash import ChainHash, chain_hash
from paceline.transcript.fingerprint import takes_long
from paceline.transcript.volatile import VolatileBlocks
from paceline.workflow import outcome
from paceline.workflow.commands import CreateWorkflow, ForkWorkflow, RunStep
from paceline.workflow.identity import workflow_hash
from paceline.workflow.model import Message, Role, Workflow, WorkflowMatch
from paceline.workflow.ports import Answered, Ledger
from paceline.workflow.turns import Turns
from paceline.workflow.workflows import Workflows


@dataclass(frozen=True, slots=True)
class Made:
    """A workflow that the ledger does not have yet: it gets it with its first step, so that a step which is
    refused before leaves none behind."""

    workflow: Workflow
    request_hash: str


@dataclass(frozen=True, slots=True)
class Found:
    """Where a step runs that names no workflow."""

    workflow_id: str
    match: WorkflowMatch
    made: Made | None = None
    """Set when the workflow is a new one."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where to run: in a workflow, in a fork of it at a step, or, without a workflow, in a new one."""

    match: WorkflowMatch
    workflow_id: str = ""
    fork_at: str = ""
    claims: frozenset[str] = frozenset()
    """Ids of the workflow and the step that nobody else may continue meanwhile."""


class Finder:
    """Finds workflows by conversation. Within one process, a step is continued once, whoever asks how often at
    the same moment; `busy` tells whether a workflow runs a step now."""

    def __init__(
        self,
        ledger: Ledger,
        workflows: Workflows,
        volatile: VolatileBlocks,
        busy: Callable[[str, str], bool],
    ) -> None:
        self._ledger = ledger
        self._workflows = workflows
        self._volatile = volatile
        self._busy = busy
        self._lookups = Turns()
        self._claims: set[tuple[str, str]] = set()
        """By tenant and id."""

    async def chain(self, command: RunStep) -> ChainHash:
        """Hash a conversation. Raises `InvalidArgument` or `ModelNotFound` for its model."""
        system, messages = _parts(command)
        parts = command.caller, self._workflows.model_named(command.model), self._volatile.take_out(system).system
        if takes_long(command.input.messages):
            return await asyncio.to_thread(chain_hash, *parts, messages)
        return chain_hash(*parts, messages)

    async def retried(self, command: RunStep, chain: ChainHash, request_hash: str) -> str | None:
        """The id of the same request whose step ended without an answer and may run again."""
        for step in await self._ledger.find_unanswered(command.tenant, chain.whole):
            same = step.request_hash == request_hash and outcome.retryable(step.error_reason)
            if same and step.replaceable and self._free(command.tenant, step.workflow_id):
                return step.request_id
        return None

    @asynccontextmanager
    async def find(self, command: RunStep, chain: ChainHash) -> AsyncIterator[Found]:
        """Find or plan the workflow of a new step; nobody else continues the same until the block ends."""
        tenant, claims = command.tenant, set[tuple[str, str]]()
        try:
            # What could continue the same step looks one after the other, each knowing what the one before took.
            async with self._lookups.take(f"{tenant}/{chain.first.hex()}"):
                choice = await self._choose(tenant, chain)
                claims = {(tenant, claimed) for claimed in choice.claims}
                self._claims |= claims
            yield await self._place(command, choice)
        finally:
            self._claims -= claims

    async def _choose(self, tenant: str, chain: ChainHash) -> _Choice:
        taken = frozenset(self._claims)  # what is given back during the look may not be seen by it
        unanswered = await self._ledger.find_unanswered(tenant, chain.whole)
        answered = await self._ledger.find_answered(tenant, chain.answers)
        for failed in unanswered:
            if failed.replaceable and self._free(tenant, failed.workflow_id, taken):
                claims = frozenset({failed.workflow_id})
                return _Choice(failed.match, failed.workflow_id, claims=claims)
        return self._continue(tenant, answered, taken)

    def _continue(self, tenant: str, answered: list[Answered], taken: frozenset[tuple[str, str]]) -> _Choice:
        if not answered:
            return _Choice(WorkflowMatch.NEW)
        free = [
            step
            for step in answered
            if not step.continued
            and (tenant, step.step_id) not in taken
            and self._free(tenant, step.workflow_id, taken)
        ]
        if not free:
            latest = answered[0]
            return _Choice(WorkflowMatch.AMBIGUOUS, latest.workflow_id, latest.step_id)
        latest = free[0]
        return _Choice(
            WorkflowMatch.EXACT if len(free) == 1 else WorkflowMatch.AMBIGUOUS,
            latest.workflow_id,
            latest.step_id if latest.closed else "",
            frozenset({latest.step_id, latest.workflow_id}),
        )

    def _free(self, tenant: str, workflow_id: str, taken: frozenset[tuple[str, str]] = frozenset()) -> bool:
        claim = (tenant, workflow_id)
        return claim not in taken and claim not in self._claims and not self._busy(tenant, workflow_id)

    async def _place(self, command: RunStep, choice: _Choice) -> Found:
        if not choice.workflow_id:
            create = CreateWorkflow(
                command.tenant,
                model=command.model,
                system=_parts(command)[0],
                tools=command.tools or (),
                labels=command.labels,
            )
            return _made(self._workflows.planned(create), create, choice)
        if choice.fork_at:
            fork = ForkWorkflow(command.tenant, choice.workflow_id, choice.fork_at)
            return _made(await self._workflows.planned_fork(fork), fork, choice)
        return Found(choice.workflow_id, choice.match)


def _made(workflow: Workflow, command: CreateWorkflow | ForkWorkflow, choice: _Choice) -> Found:
    return Found(workflow.workflow_id, choice.match, Made(workflow, workflow_hash(command)))


def _parts(command: RunStep) -> tuple[str, tuple[Message, ...]]:
    """The system prompt of a conversation, and its other messages."""
    first, *rest = command.input.messages
    return (first.content, tuple(rest)) if first.role is Role.SYSTEM else ("", command.input.messages)
